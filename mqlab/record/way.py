"""The way of one token through the processes, and what held it up longest.

Every stamp is measured. Which step made a token is not: steps and messages name no requests. It is inferred backwards from the front: a
token's step is the latest one whose output had reached the front when the token's delta was stamped, and every delta has a later step
than the one before it. A front that takes several messages before it looks at any can shift that by a step. A step's message is inferred
too: the first on the output edge that was sent after the step's end and that no earlier step has taken.

Within a step only its begin and the lengths of its parts are known. Parts are laid end to end; what the engine does between them, such as
sending while the device works, shows in the hop after them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from mqlab.errors import TraceError
from mqlab.record.columns import Columns, columns, records, where
from mqlab.record.edges import flows, transits
from mqlab.record.facts import PARTS, in_order, step_ends
from mqlab.record.relay import Relay, find_relay

if TYPE_CHECKING:
    import pandas

    from mqlab.record.trace import Trace

OUTPUT = "output"
"""The edge on which steps leave the engine."""

_STAMPS = ("begin_ns", "received_ns")

MEASURED = "measured"
INFERRED = "inferred"

_PHRASES = {
    "input": "the way in, from the front to the engine",
    "queue": "the engine's queue",
    "wait": "steps before the one that made it",
    "schedule": "scheduling, in the step that made it",
    "launch": "launching, in the step that made it",
    "device": "the device, in the step that made it",
    "sample": "sampling, in the step that made it",
    "output": "accounting, in the step that made it",
    "send": "the engine, between the end of the step and sending",
    "socket": "the socket",
    "relay": "the process between engine and front, from the message's arrival to its own",
    "front": "the front, between the message's arrival and the delta",
    "engine to front": "the way from the step's end to the front",
}

_SINCE = {
    "arrived": "its request arrived",
    "previous step ended": "the end of the step that made the token before",
    "previous delta": "the delta before",
}


@dataclass(frozen=True)
class Hop:
    """A moment on the way.

    Attributes:
        part: what the time since the hop before was spent in, a key of the phrases; empty for the first.
        how: measured; or inferred: a stamp of a step or message that is taken for the token's.
    """

    hop: str
    part: str
    writer: str
    stamp_ns: int
    how: str


@dataclass(frozen=True)
class _Made:
    """Steps of a run that made tokens, by their end, and the output message that carried each: -1 ns where there is none."""

    writer: str
    steps: Columns
    ends: np.ndarray
    begin_ns: np.ndarray
    received_ns: np.ndarray
    relay: Relay | None

    def reached_front(self) -> np.ndarray:
        """When the front could know of each step: its message's arrival, its end where the engine sends no messages."""
        return np.where(self.received_ns >= 0, self.received_ns, self.ends)


def way(trace: Trace, request_id: str, token: int = 0) -> pandas.DataFrame:
    """Hops of one token, in their order; a hop that was not recorded is absent.

    The first token begins with its request's arrival, a later one with the end of the step that made the token before it: from then
    on the engine could work on it.

    Args:
        token: number of the output token, from 0. Tokens of one delta share its hops.

    Columns: ``hop``, ``part`` (what the time before it was spent in), ``writer``, ``seconds`` (since the trace's start), ``stamp_ns``,
    ``ms`` (since the hop before; a hop that overlaps with it counts from where it ended), ``how`` (measured; or inferred:
    the stamp is measured, that it is the token's step or message is not).

    Raises:
        TraceError: no such request or token.
    """
    import pandas as pd

    row = _request(trace, request_id)
    delta = _delta(row, token)
    hops = list(_hops(trace, row, delta))
    reached = list(accumulate((hop.stamp_ns for hop in hops), max))
    spent = [0.0, *((later - earlier) / 1e6 for earlier, later in pairwise(reached))]
    return pd.DataFrame(
        [
            (hop.hop, hop.part, hop.writer, (hop.stamp_ns - trace.start_ns) / 1e9, hop.stamp_ns, ms, hop.how)
            for hop, ms in zip(hops, spent, strict=True)
        ],
        columns=["hop", "part", "writer", "seconds", "stamp_ns", "ms", "how"],
    )


def why(trace: Trace, request_id: str, token: int = 0) -> str:
    """One sentence: how long a token took and which part of its way took longest.

    Raises:
        TraceError: no such request or token.
    """
    hops = records(way(trace, request_id, token))
    spent: dict[str, float] = defaultdict(float)
    for hop in hops[1:]:
        spent[hop["part"]] += hop["ms"]
    total, part = sum(spent.values()), max(spent, key=lambda part: spent[part])
    share = f" ({spent[part] / total:.0%})" if total else ""
    doubt = " (which step made it is inferred)" if any(hop["how"] == INFERRED for hop in hops) else ""
    return (
        f"Token {token} of request {request_id} reached the front {total:.3f} ms after {_SINCE[hops[0]['hop']]}; "
        f"most of that, {spent[part]:.3f} ms{share}, went to {_PHRASES[part]}{doubt}."
    )


def _request(trace: Trace, request_id: str) -> dict[str, Any]:
    rows = where(trace.tables["requests"], id=request_id).to_pylist()
    if not rows:
        known = [str(row) for row in trace.tables["requests"]["id"][:3].to_pylist()]
        raise TraceError(f"no request {request_id!r} in this trace; the first of {trace.tables['requests'].num_rows} are {known}")
    if not rows[-1]["token_ns"]:
        raise TraceError(f"request {request_id!r} has no tokens at the front: it is not finished, or gave none ({rows[-1]['finish']})")
    return rows[-1]


def _delta(row: Mapping[str, Any], token: int) -> int:
    """Number of the delta that a token came in."""
    ends = list(accumulate(row["token_counts"]))
    if not 0 <= token < ends[-1]:
        raise TraceError(f"token {token} of request {row['id']!r} does not exist: it has tokens 0 to {ends[-1] - 1}")
    return int(np.searchsorted(ends, token, side="right"))


def _hops(trace: Trace, row: Mapping[str, Any], delta: int) -> Iterator[Hop]:
    made = _made(trace, row)
    steps = _assign(made, row) if made is not None else []
    front = str(row["writer"])
    if delta == 0:
        yield from _first_hops(row)
    elif made is not None and steps[delta - 1] >= 0:
        yield Hop("previous step ended", "", made.writer, int(made.ends[steps[delta - 1]]), INFERRED)
    else:
        yield Hop("previous delta", "", front, row["token_ns"][delta - 1], MEASURED)
    last = "engine to front"
    if made is not None and steps[delta] >= 0:
        yield from _step_hops(made, steps[delta], front)
        last = "front" if made.received_ns[steps[delta]] >= 0 else last
    yield Hop("delta", last, front, row["token_ns"][delta], MEASURED)


def _first_hops(row: Mapping[str, Any]) -> Iterator[Hop]:
    yield Hop("arrived", "", row["writer"], row["arrived_ns"], MEASURED)
    if row["added_ns"]:
        yield Hop("added", "input", row["engine"], row["added_ns"], MEASURED)
    if row["scheduled_ns"]:
        yield Hop("scheduled", "queue", row["engine"], row["scheduled_ns"], MEASURED)


def _step_hops(made: _Made, step: int, front: str) -> Iterator[Hop]:
    at = int(made.steps["stamp_ns"][step])
    yield Hop("step began", "wait", made.writer, at, INFERRED)
    for part in PARTS:
        at += int(made.steps[f"{part}_ns"][step])
        yield Hop(f"{part} ended", part, made.writer, at, INFERRED)
    if made.received_ns[step] >= 0:
        yield Hop("send began", "send", made.writer, int(made.begin_ns[step]), INFERRED)
        if (relay := made.relay) is not None and relay.came_ns[step] >= 0:
            yield Hop("came between", "socket", relay.writer, int(relay.came_ns[step]), INFERRED)
            yield Hop("went on", "relay", relay.writer, int(relay.went_ns[step]), INFERRED)
        yield Hop("received", "socket", front, int(made.received_ns[step]), INFERRED)


def _made(trace: Trace, row: Mapping[str, Any]) -> _Made | None:
    """Productive steps of the engine that the request was with; None where none were recorded."""
    table = where(trace.tables["steps"], run=row["run"])
    engines = sorted(set(table["writer"].to_pylist()))
    writer = row["engine"] or (engines[0] if len(engines) == 1 else "")
    steps = columns(where(table, writer=writer))
    productive = steps["new_tokens"] > 0
    if not productive.any():
        return None
    steps = {name: values[productive] for name, values in steps.items()}
    ends = step_ends(steps)
    relay = find_relay(trace, row["run"], writer, row["writer"], ends)
    begin, received = (relay.sent_ns, relay.received_ns) if relay is not None else _messages(trace, row, writer, ends)
    return _Made(writer, steps, ends, begin, received, relay)


def _messages(trace: Trace, row: Mapping[str, Any], engine: str, ends: np.ndarray) -> tuple[np.ndarray, ...]:
    """Begin of sending and arrival of the output message of each step; -1 where there is none."""
    none = np.full(len(ends), -1, dtype=np.int64)
    for flow in flows(trace):
        if (flow.run, flow.edge, flow.senders, flow.receivers) == (row["run"], OUTPUT, (engine,), (row["writer"],)):
            found = transits(trace, flow)
            index = in_order(ends, found["sent_ns"].to_numpy())
            return tuple(np.where(index >= 0, found[name].to_numpy()[index], -1) if len(found) else none for name in _STAMPS)
    return none, none


def _assign(made: _Made, row: Mapping[str, Any]) -> list[int]:
    """Number of the step that made each delta, -1 where none can have: from the last delta back, each before the next one's."""
    reached = np.maximum.accumulate(made.reached_front())
    latest: Sequence[int] = (np.searchsorted(reached, row["token_ns"], side="right") - 1).tolist()
    earliest = int(np.searchsorted(made.ends, row["scheduled_ns"] or row["arrived_ns"], side="right"))
    steps: list[int] = []
    for step in reversed(latest):
        bound = step if not steps else min(step, steps[-1] - 1)
        steps.append(bound)
    return [step if step >= earliest else -1 for step in reversed(steps)]
