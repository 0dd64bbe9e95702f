"""Chrome trace JSON of a trace, for ui.perfetto.dev and chrome://tracing. Format: "Trace Event Format" (Google, 2016)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqlab.errors import TraceError
from mqlab.record.columns import by_writer, columns, records, where, writers
from mqlab.record.edges import flows, transits
from mqlab.record.facts import PARTS
from mqlab.record.tables import COLUMNS

if TYPE_CHECKING:
    from mqlab.record.trace import Trace

Json = dict[str, Any]

_STEPS = "steps"
_LOOP = "event loop"

_SPANS = (
    ("request", "writer", "arrived_ns", "last_ns"),
    ("queued", "engine", "added_ns", "scheduled_ns"),
    ("decoding", "writer", "first_ns", "last_ns"),
)
"""Name, who knows of it, begin and end."""


def export(trace: Trace, path: Path) -> Path:
    """Write events to a .json file: a process a writer; steps with their parts, messages as calls joined by flow arrows, requests as
    asynchronous spans, loop lag, CPU and memory as counters. About 1 GB for 3 million events; it is written as it is made.

    Raises:
        TraceError: the name does not end in .json.
    """
    if path.suffix != ".json":
        raise TraceError(f"{path}: a Chrome trace is a .json file; Trace.save writes the tables")
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "otherData": ' + json.dumps(trace.meta, default=str) + ', "traceEvents": [\n')
        for number, event in enumerate(events(trace)):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")
    return path


def events(trace: Trace) -> Iterator[Json]:
    """Every event; ``ts`` and ``dur`` in µs since the trace's start."""
    tracks = Tracks(trace)
    yield from tracks.names()
    yield from _steps(trace, tracks)
    yield from _messages(trace, tracks)
    yield from _flows(trace, tracks)
    yield from _requests(trace, tracks)
    yield from _counters(trace, tracks)


class Tracks:
    """Numbers of processes and of their tracks. Not the pids: two runs, and two roles in one process, stay apart."""

    def __init__(self, trace: Trace) -> None:
        seen = {pair for name in COLUMNS for pair in writers(trace.tables[name])}
        seen |= {(row["run"], row["engine"]) for row in trace.tables["requests"].to_pylist() if row["engine"]}
        self._pids = {pair: number for number, pair in enumerate(sorted(seen), 1)}
        messages = trace.tables["messages"].group_by(["edge", "direction"]).aggregate([]).to_pylist()
        edges = sorted(f"{row['edge']} {row['direction']}" for row in messages)
        self._tids = {name: number for number, name in enumerate([_STEPS, _LOOP, *edges], 1)}
        self._start_ns = trace.start_ns
        self._many = len(trace.meta["runs"]) > 1

    def at(self, run: str, writer: str, track: str, stamp_ns: int) -> Json:
        """Where and when an event is."""
        return {"pid": self._pids[run, writer], "tid": self._tids[track], "ts": (int(stamp_ns) - self._start_ns) / 1e3}

    def names(self) -> Iterator[Json]:
        """What processes and tracks are called."""
        for (run, writer), pid in self._pids.items():
            name = f"{writer} ({run})" if self._many else writer
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
            for track, tid in self._tids.items():
                yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": track}}


def _steps(trace: Trace, tracks: Tracks) -> Iterator[Json]:
    for run, writer, found in by_writer(trace.tables["steps"]):
        for number, step in enumerate(_rows(found)):
            total = sum(step[f"{part}_ns"] for part in PARTS)
            counts = {name: step[name] for name in ("sequences", "tokens", "new_tokens")}
            yield _slice("step", tracks.at(run, writer, _STEPS, step["stamp_ns"]), total, {"number": number, **counts})
            yield from _parts(step, run, writer, tracks)


def _parts(step: Mapping[str, int], run: str, writer: str, tracks: Tracks) -> Iterator[Json]:
    at = step["stamp_ns"]
    for part in PARTS:
        yield _slice(part, tracks.at(run, writer, _STEPS, at), step[f"{part}_ns"])
        at += step[f"{part}_ns"]


def _messages(trace: Trace, tracks: Tracks) -> Iterator[Json]:
    """Calls that sent or received; the stamp is their end."""
    for message in records(trace.tables["messages"].to_pandas()):
        track = f"{message['edge']} {message['direction']}"
        begin = message["stamp_ns"] - message["duration_ns"]
        what = {name: message[name] for name in ("seq", "frames", "bytes")}
        yield _slice(track, tracks.at(message["run"], message["writer"], track, begin), message["duration_ns"], what)


def _flows(trace: Trace, tracks: Tracks) -> Iterator[Json]:
    """Arrows between the calls that sent and received a message, where both are known."""
    for flow in flows(trace):
        for message in records(transits(trace, flow)):
            arrow = {"cat": "message", "name": flow.edge, "id": f"{flow.run}/{flow.edge}/{flow.senders[0]}/{message['seq']}"}
            yield {"ph": "s", **arrow, **tracks.at(flow.run, flow.senders[0], f"{flow.edge} sent", message["begin_ns"])}
            end = tracks.at(flow.run, flow.receivers[0], f"{flow.edge} received", message["received_ns"])
            yield {"ph": "f", "bp": "e", **arrow, **end}


def _requests(trace: Trace, tracks: Tracks) -> Iterator[Json]:
    """Spans of each request, one inside the other: the whole at the front, the time in the queue, the decoding, and its deltas."""
    for number, row in enumerate(trace.tables["requests"].to_pylist()):
        facts = {name: row[name] for name in ("id", "prompt_tokens", "output_tokens", "finish")}
        for name, who, begin, end in _SPANS:
            span = f"request {row['id']}" if name == "request" else name
            yield from _span(tracks, row, number, span, who, (row[begin], row[end]), facts if name == "request" else {})


def _span(
    tracks: Tracks, row: Mapping[str, Any], number: int, name: str, who: str, ends: tuple[int | None, int | None], facts: Json
) -> Iterator[Json]:
    begin, end = ends
    if row[who] and begin and end:
        span = {"cat": "request", "name": name, "id": number}
        yield {"ph": "b", **span, **tracks.at(row["run"], row[who], _STEPS, begin), "args": facts}
        yield {"ph": "e", **span, **tracks.at(row["run"], row[who], _STEPS, end)}


def _counters(trace: Trace, tracks: Tracks) -> Iterator[Json]:
    for run, writer, found in by_writer(trace.tables["loop"]):
        for tick in _rows(found):
            yield _counter("loop lag", tracks.at(run, writer, _LOOP, tick["stamp_ns"]), ms=tick["lag_ns"] / 1e6)
    for run, writer in sorted(writers(trace.tables["processes"])):
        looks = where(trace.tables["processes"], run=run, writer=writer)
        for look in _rows(columns(looks)):
            at = tracks.at(run, writer, _LOOP, look["stamp_ns"])
            yield _counter(f"memory of {look['role']} {look['pid']}", at, MiB=look["rss_bytes"] / 2**20)
            yield _counter(f"CPU of {look['role']} {look['pid']}", at, s=look["cpu_ns"] / 1e9)


def _rows(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Columns as rows of plain Python numbers, which JSON can write."""
    for values in zip(*(column.tolist() for column in found.values()), strict=True):
        yield dict(zip(found, values, strict=True))


def _slice(name: str, at: Json, duration_ns: int, args: Json | None = None) -> Json:
    return {"ph": "X", "name": name, **at, "dur": int(duration_ns) / 1e3, "args": args or {}}


def _counter(name: str, at: Json, **values: float) -> Json:
    return {"ph": "C", "name": name, **at, "args": values}
