"""A recording folder as Arrow tables: every process's files of one kind joined into one table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mqlab.errors import TraceError
from mqlab.record.events import HEADER_BYTES, KINDS, LOOP, MESSAGE, PROCESS, STEP, SUFFIX, Events, Kind, read_events
from mqlab.record.requests import SUFFIX as REQUESTS_SUFFIX
from mqlab.record.requests import RequestRow, join_rows, read_rows
from mqlab.wire.counters import CAPACITY, PAGE_BYTES, CounterPage

if TYPE_CHECKING:
    import pyarrow as pa

COUNTERS_SUFFIX = ".counters"

_Content = TypeVar("_Content")

_WHO = {"run": "string", "writer": "string"}

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "steps": _WHO | dict.fromkeys(STEP.columns, "int64"),
    "messages": _WHO | {"edge": "string", "direction": "string"} | dict.fromkeys(MESSAGE.columns, "int64"),
    "loop": _WHO | dict.fromkeys(LOOP.columns, "int64"),
    "processes": _WHO | {"role": "string"} | dict.fromkeys(PROCESS.columns, "int64"),
    "requests": _WHO
    | {"engine": "string", "id": "string"}
    | dict.fromkeys(("arrived_ns", "added_ns", "scheduled_ns", "first_ns", "last_ns", "prompt_tokens", "output_tokens"), "int64")
    | {"finish": "string"}
    | dict.fromkeys(("queue_ms", "ttft_ms", "tpot_ms", "e2el_ms"), "double")
    | {"itl_ms": "doubles", "token_ns": "int64s", "token_counts": "int64s"},
    "counters": _WHO | {"name": "string", "value": "int64"},
}
"""Tables of a trace and their columns. Every row names its run and its writer, a role and a pid such as ``engine-4711``; what ends in
``_ns`` is CLOCK_MONOTONIC or a duration. ``requests`` has one row a request, joined from what front and engine wrote."""

_TABLES = {STEP.name: "steps", MESSAGE.name: "messages", LOOP.name: "loop", PROCESS.name: "processes"}


def schema(table: str) -> pa.Schema:
    """The Arrow schema of a table; every column may be null."""
    import pyarrow as pa

    types: dict[str, Any] = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64()}
    types |= {"int64s": pa.list_(pa.int64()), "doubles": pa.list_(pa.float64())}
    return pa.schema([(name, types[kind]) for name, kind in COLUMNS[table].items()])


def is_recording(folder: Path) -> bool:
    """Whether a process has written its files there."""
    return any(path.name.endswith((SUFFIX, COUNTERS_SUFFIX, REQUESTS_SUFFIX)) for path in folder.iterdir())


def read_folder(folder: Path, run: str) -> tuple[dict[str, pa.Table], list[str]]:
    """All tables of a recording, live or finished, and a note on each file that is not whole.

    Raises:
        TraceError: a file with a recording's suffix holds something else.
    """
    notes: list[str] = []
    tables = _read_events(folder, run, notes)
    tables["requests"] = _read_requests(folder, run, notes)
    tables["counters"] = _read_counters(folder, run, notes)
    return {name: tables[name] for name in COLUMNS}, notes


def _read_events(folder: Path, run: str, notes: list[str]) -> dict[str, pa.Table]:
    import pyarrow as pa

    parts: dict[str, list[pa.Table]] = {table: [schema(table).empty_table()] for table in _TABLES.values()}
    for path, events in _each(folder, SUFFIX, read_events, HEADER_BYTES, notes):
        if KINDS.get(events.kind.name) != events.kind:
            raise TraceError(f"{path} holds events {events.kind}, which this version does not know: read it with the one that wrote it")
        parts[_TABLES[events.kind.name]].append(_event_table(events, run))
    return {table: pa.concat_tables(found) for table, found in parts.items()}


def _event_table(events: Events, run: str) -> pa.Table:
    import pyarrow as pa

    table, count = _TABLES[events.kind.name], len(events.rows)
    columns: dict[str, Any] = dict(zip(events.kind.columns, np.ascontiguousarray(events.rows.T), strict=True))
    texts = {"run": run, "writer": events.writer, **_label(events.kind, events.label)}
    columns |= {name: pa.repeat(pa.scalar(text), count) for name, text in texts.items()}
    return pa.table({name: columns[name] for name in COLUMNS[table]}, schema=schema(table))


def _label(kind: Kind, label: str) -> dict[str, str]:
    if kind == PROCESS:
        return {"role": label}
    edge, _, direction = label.rpartition(".")
    return {"edge": edge, "direction": direction} if kind == MESSAGE else {}


def _read_requests(folder: Path, run: str, notes: list[str]) -> pa.Table:
    import pyarrow as pa

    rows: list[tuple[str, RequestRow]] = []
    for path, (found, note) in _each(folder, REQUESTS_SUFFIX, read_rows, 0, notes):
        rows += ((path.name.removesuffix(REQUESTS_SUFFIX), row) for row in found)
        notes += [note] if note else []
    return pa.Table.from_pylist([{"run": run, **row} for row in join_rows(rows)], schema=schema("requests"))


def _read_counters(folder: Path, run: str, notes: list[str]) -> pa.Table:
    import pyarrow as pa

    rows = [
        {"run": run, "writer": path.name.removesuffix(COUNTERS_SUFFIX), "name": name, "value": value}
        for path, counters in _each(folder, COUNTERS_SUFFIX, _read_page, PAGE_BYTES, notes)
        for name, value in counters.items()
    ]
    return pa.Table.from_pylist(rows, schema=schema("counters"))


def _read_page(path: Path) -> dict[str, int]:
    with path.open("rb") as file:
        count = int.from_bytes(file.read(8), sys.byteorder, signed=True)
    if not 0 <= count <= CAPACITY:
        raise ValueError(f"it says that it holds {count} counters, a page holds up to {CAPACITY}")
    page = CounterPage.open(path)
    try:
        return page.read()
    finally:
        page.close()


def _each(
    folder: Path, suffix: str, read: Callable[[Path], _Content], least_bytes: int, notes: list[str]
) -> Iterator[tuple[Path, _Content]]:
    """Files of one kind and what they hold. One that is too short to begin with is being made, or its writer died making it."""
    for path in sorted(folder.glob(f"*{suffix}")):
        if path.stat().st_size < least_bytes:
            notes.append(f"{path.name} is not whole: left out")
            continue
        try:
            yield path, read(path)
        except (ValueError, KeyError, TypeError, IndexError, OSError) as error:
            raise TraceError(f"{path} cannot be read: {error}; move it away to read the rest") from error
