"""A trace: everything that the processes of a run wrote, as tables on one clock. Plots and derived tables are functions of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqlab.errors import TraceError
from mqlab.record import archive, facts, perfetto, summary, way
from mqlab.record.columns import where
from mqlab.record.edges import edges
from mqlab.record.merge import merge
from mqlab.record.metadata import read_meta
from mqlab.record.tables import COLUMNS, is_recording, read_folder

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

_STAMPED = ("steps", "messages", "loop", "processes")
_REQUEST_STAMPS = ("arrived_ns", "added_ns", "scheduled_ns", "first_ns", "last_ns")


@dataclass(frozen=True, repr=False, eq=False)
class Trace:
    """One run, or several of one machine and boot.

    Attributes:
        tables: Arrow tables by name: steps, messages, loop, processes, requests, counters; columns in ``mqlab.record.tables.COLUMNS``.
        meta: ``runs``: by the name of the run what its ``meta.json`` said (environment, config, seed); ``probe_overhead``: by run and
            writer the ns that its probes took and their share of the run's time; ``notes``: what could not be read.
    """

    tables: Mapping[str, pa.Table]
    meta: Mapping[str, Any]

    @staticmethod
    def of(folder: str | Path) -> Trace:
        """Read a recording's folder, finished or still being written: then it holds what has been written so far.

        Raises:
            TraceError: there is no such folder, no process wrote into it, or a file in it is not what its name says.
        """
        folder = archive.existing(folder)
        if not is_recording(folder):
            inside = [path.name for path in sorted(folder.iterdir()) if path.is_dir() and is_recording(path)]
            hint = f"; in it are {', '.join(inside)}, which Trace.merge puts together" if inside else ""
            raise TraceError(f"{folder} holds no recording: no process wrote *.events, *.counters or *.requests.jsonl there{hint}")
        meta, note = read_meta(folder)
        run = str(meta.get("run", folder.resolve().name))
        tables, notes = read_folder(folder, run)
        return Trace.joined(tables, {run: meta}, [*note, *notes])

    @staticmethod
    def joined(tables: Mapping[str, pa.Table], runs: Mapping[str, Any], notes: Iterable[str]) -> Trace:
        """A trace of tables and what is known of each run; the overhead of the probes is worked out."""
        bare = Trace(tables, {"runs": dict(runs), "notes": list(notes)})
        return Trace(tables, {**bare.meta, "probe_overhead": facts.overhead(bare)})

    @staticmethod
    def load(path: str | Path) -> Trace:
        """Read a saved trace, or a recording's folder.

        Raises:
            TraceError: it is neither, it is not whole, or a newer version wrote it.
        """
        path = archive.existing(path)
        meta = archive.read_meta(path)
        return Trace.of(path) if meta is None else Trace(archive.read_tables(path), meta)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write it to the folder ``path``, which gets the suffix .mqtrace where it has none (``mqlab.record.archive``). Returns it.

        Raises:
            TraceError: something is there already, and it is no trace or ``overwrite`` is not given.
        """
        return archive.write(Path(path), self.tables, self.meta, overwrite)

    @staticmethod
    def merge(traces: Iterable[Trace]) -> Trace:
        """One trace of several: other processes of a run, or other runs.

        CLOCK_MONOTONIC is common to a machine from boot to boot, so stamps stay as they are.

        Raises:
            TraceError: none given, their clocks differ (host or boot), or one writer of a run is in two of them.
        """
        return Trace.joined(*merge(list(traces)))

    def to_pandas(self, table: str) -> pandas.DataFrame:
        """A table as a DataFrame, with seconds since the trace's start beside the raw stamps.

        Tables with a ``stamp_ns`` get ``seconds`` in front of it; ``requests`` gets ``arrived_s``, ``added_s``, ``scheduled_s``,
        ``first_s`` and ``last_s``. Whole numbers that can be absent are of pandas' type Int64.

        Raises:
            TraceError: there is no such table.
        """
        import pandas as pd
        import pyarrow as pa

        if table not in COLUMNS:
            raise TraceError(f"no table {table!r}: there are {', '.join(COLUMNS)}")
        mapper = {pa.int64(): pd.Int64Dtype()}.get if table == "requests" else None
        frame = self.tables[table].to_pandas(types_mapper=mapper)
        if table in _STAMPED:
            frame.insert(frame.columns.get_loc("stamp_ns"), "seconds", (frame["stamp_ns"] - self.start_ns) / 1e9)
        if table == "requests":
            for column in _REQUEST_STAMPS:
                frame[column.replace("_ns", "_s")] = ((frame[column] - self.start_ns) / 1e9).astype(float)
        return frame

    @cached_property
    def runs(self) -> dict[str, tuple[int, int]]:
        """First and last stamp of each run, in ns of CLOCK_MONOTONIC; both 0 where it has none."""
        spans = {run: [found for name in COLUMNS for found in _span(self.tables[name], run)] for run in self.meta["runs"]}
        return {run: (min(stamps, default=0), max(stamps, default=0)) for run, stamps in spans.items()}

    @property
    def start_ns(self) -> int:
        """The first stamp of all."""
        return min((start for start, end in self.runs.values() if end), default=0)

    @property
    def end_ns(self) -> int:
        """The last stamp of all."""
        return max((end for _, end in self.runs.values()), default=0)

    @property
    def seconds(self) -> float:
        """From the first stamp to the last."""
        return (self.end_ns - self.start_ns) / 1e9

    def latency(self) -> pandas.DataFrame:
        """One row a finished request; see ``mqlab.record.facts.latency``."""
        return facts.latency(self)

    def edges(self) -> pandas.DataFrame:
        """One row an edge and direction; see ``mqlab.record.edges.edges``."""
        return edges(self)

    def steps(self) -> pandas.DataFrame:
        """Where the engine's time went; see ``mqlab.record.facts.steps``."""
        return facts.steps(self)

    def loops(self) -> pandas.DataFrame:
        """One row an event loop; see ``mqlab.record.facts.loops``."""
        return facts.loops(self)

    def probes(self) -> pandas.DataFrame:
        """What each probe cost; see ``mqlab.record.facts.probes``."""
        return facts.probes(self)

    def throughput(self, interval: float = 1.0) -> pandas.DataFrame:
        """Rates over time; see ``mqlab.record.facts.throughput``."""
        return facts.throughput(self, interval)

    def way(self, request_id: str, token: int = 0) -> pandas.DataFrame:
        """The hops of one token through the processes; see ``mqlab.record.way.way``."""
        return way.way(self, request_id, token)

    def why(self, request_id: str, token: int = 0) -> str:
        """One sentence on where most of a token's time went; see ``mqlab.record.way.why``."""
        return way.why(self, request_id, token)

    def export(self, path: str | Path) -> Path:
        """Write Chrome trace JSON, which ui.perfetto.dev opens; see ``mqlab.record.perfetto.export``."""
        return perfetto.export(self, Path(path))

    def __repr__(self) -> str:
        return summary.as_text(self)

    def _repr_html_(self) -> str:
        return summary.as_html(self)


def _span(table: pa.Table, run: str) -> list[int]:
    """First and last of all stamps that a run has in a table."""
    rows = where(table, run=run)
    stamps = (rows[name].drop_null().to_numpy() for name in rows.column_names if name == "stamp_ns" or name in _REQUEST_STAMPS)
    return [int(end) for found in stamps if len(found) for end in (found.min(), found.max())]
