"""Several traces as one. Only traces of one machine and boot have one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mqlab.errors import TraceError
from mqlab.record.columns import writers
from mqlab.record.requests import rejoin
from mqlab.record.tables import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from mqlab.record.trace import Trace

_CLOCK = ("host", "boot_id")


def merge(traces: Sequence[Trace]) -> tuple[dict[str, pa.Table], dict[str, Any], list[str]]:
    """Tables, metadata by run and notes of all.

    Raises:
        TraceError: none given, clocks differ, or a writer of a run is in two traces.
    """
    import pyarrow as pa

    if not traces:
        raise TraceError("no trace to merge: give at least one")
    _check_clocks(traces)
    _check_writers(traces)
    tables = {name: pa.concat_tables([trace.tables[name] for trace in traces]) for name in COLUMNS}
    tables["requests"] = _join_requests(tables["requests"])
    runs: dict[str, Any] = {}
    for trace in traces:
        for run, meta in trace.meta["runs"].items():
            runs[run] = {**runs.get(run, {}), **meta}
    return tables, runs, [note for trace in traces for note in trace.meta["notes"]]


def _join_requests(table: pa.Table) -> pa.Table:
    """Front and engine of one run may have been in two traces."""
    by_run: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in table.to_pylist():
        by_run[row["run"]].append(row)
    joined = [{"run": run, **row} for run, rows in by_run.items() for row in rejoin(rows)]
    return table.from_pylist(joined, schema=table.schema)


def _check_clocks(traces: Sequence[Trace]) -> None:
    for key in _CLOCK:
        found = {str(meta[key]): run for trace in traces for run, meta in trace.meta["runs"].items() if key in meta}
        if len(found) > 1:
            where = " and ".join(f"{value} (run {run})" for value, run in found.items())
            raise TraceError(f"traces of different {key} have different clocks and cannot be merged: {where}; keep them apart")


def _check_writers(traces: Sequence[Trace]) -> None:
    seen: set[tuple[str, str]] = set()
    for trace in traces:
        own = {pair for name in COLUMNS for pair in writers(trace.tables[name])}
        if twice := seen & own:
            run, writer = min(twice)
            raise TraceError(f"{writer} of run {run} is in two of the traces: merge each recording once")
        seen |= own
