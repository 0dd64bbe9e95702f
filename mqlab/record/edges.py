"""Messages between processes: who sent to whom, how many, how long they took, how many were lost.

Both ends of a socket count its messages from 0. Where an edge has one writer at each end, the n-th sent is the n-th received; where it
has more, numbers do not match and only sums are told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from mqlab.record.columns import Columns, columns, where
from mqlab.record.stats import percentiles

if TYPE_CHECKING:
    import pandas

    from mqlab.record.trace import Trace

SENT, RECEIVED = "sent", "received"

Ends = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Counters of one edge: by direction, by writer, by what is counted."""


@dataclass(frozen=True)
class Flow:
    """One direction of an edge. With one sender and one receiver, one socket each, its messages match by number.

    Attributes:
        single: neither end opened a second socket.
    """

    run: str
    edge: str
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    single: bool = True

    @property
    def matched(self) -> bool:
        """Whether the n-th message sent is the n-th received."""
        return self.single and len(self.senders) == len(self.receivers) == 1


def flows(trace: Trace) -> list[Flow]:
    """Every direction of every edge in which a message went."""
    return [flow for flow, _ in _counted_flows(trace)]


def edges(trace: Trace) -> pandas.DataFrame:
    """One row an edge and direction.

    Columns: ``run``, ``edge``, ``sender``, ``receiver``. From counters: ``sent``, ``received``, ``lost`` (the difference; of a run that
    goes on it holds what is under way; absent where one end left no counters), ``bytes``, ``frames`` (sent ones, received ones where the
    sender left none), ``send_us``, ``receive_us`` (mean time of a call), ``send_eagain``, ``receive_eagain``. From events:
    ``transit_p50_us``, ``transit_p99_us``, from where the call that sent began to where the call that received returned; NaN where
    messages do not match by number.
    """
    import pandas as pd

    rows = [_row(trace, flow, ends) for flow, ends in _counted_flows(trace)]
    return pd.DataFrame(rows, columns=[*_COLUMNS]).astype({"lost": "Int64"})


_COLUMNS = (
    *("run", "edge", "sender", "receiver", "sent", "received", "lost", "bytes", "frames"),
    *("send_us", "receive_us", "send_eagain", "receive_eagain", "transit_p50_us", "transit_p99_us"),
)


def transits(trace: Trace, flow: Flow) -> pandas.DataFrame:
    """Messages of one direction that both ends recorded, by number.

    Columns: ``seq``, ``begin_ns`` (the call that sent begins), ``sent_ns`` (it returned), ``received_ns``, ``bytes``. Where sizes
    begin to differ by something else than they did at first, a message was lost and numbers no longer match: the rest is left
    out. Empty for a flow that does not match at all.
    """
    import pandas as pd

    first, second = (_messages(trace, flow, writers, side) for writers, side in ((flow.senders, SENT), (flow.receivers, RECEIVED)))
    numbers, sent, received = np.intersect1d(first["seq"], second["seq"], assume_unique=flow.matched, return_indices=True)
    more = first["bytes"][sent] - second["bytes"][received]  # a ROUTER counts the address of its peer, the DEALER does not see it
    differs = np.flatnonzero(more != more[:1])
    whole = slice(0, (differs[0] if len(differs) else len(numbers)) if flow.matched else 0)
    numbers, sent, received = numbers[whole], sent[whole], received[whole]
    stamps = {"begin_ns": (first["stamp_ns"] - first["duration_ns"])[sent], "sent_ns": first["stamp_ns"][sent]}
    return pd.DataFrame({"seq": numbers, **stamps, "received_ns": second["stamp_ns"][received], "bytes": first["bytes"][sent]})


def _messages(trace: Trace, flow: Flow, writers: tuple[str, ...], direction: str) -> Columns:
    """Messages of one end; of the first writer where there are several, whose numbers match nothing."""
    writer = writers[0] if writers else ""
    return columns(where(trace.tables["messages"], run=flow.run, edge=flow.edge, direction=direction, writer=writer))


def _counted_flows(trace: Trace) -> Iterator[tuple[Flow, Ends]]:
    for (run, edge), ends in _edge_counters(trace).items():
        for senders, receivers in _split(ends):
            both = [ends[side][writer] for side, writers in ((SENT, senders), (RECEIVED, receivers)) for writer in writers]
            flow = Flow(run, edge, senders, receivers, all(end.get("sockets", 1) == 1 for end in both))
            if any(end.get("messages") for end in both):
                yield flow, ends


def _edge_counters(trace: Trace) -> dict[tuple[str, str], Ends]:
    """Counters named ``socket.EDGE.DIRECTION.WHAT``."""
    found: dict[tuple[str, str], Any] = defaultdict(lambda: {SENT: defaultdict(dict), RECEIVED: defaultdict(dict)})
    for row in trace.tables["counters"].to_pylist():
        match row["name"].split("."):
            case ["socket", edge, (("sent" | "received") as direction), what]:
                found[row["run"], edge][direction][row["writer"]][what] = row["value"]
    return found


def _split(ends: Ends) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Senders and receivers of each direction: pairs where each has the other as its only peer, else everyone together."""
    senders, receivers = set(ends[SENT]), set(ends[RECEIVED])
    pairs = []
    for sender in sorted(senders):
        others = receivers - {sender}
        if len(others) == 1 and senders - others == {sender}:
            pairs.append(((sender,), tuple(others)))
    if {end for pair in pairs for end in chain(*pair)} == senders | receivers:
        return pairs
    return [(tuple(sorted(senders)), tuple(sorted(receivers)))]


def _row(trace: Trace, flow: Flow, ends: Ends) -> dict[str, Any]:
    sent, received = _sums(ends, SENT, flow.senders), _sums(ends, RECEIVED, flow.receivers)
    either = sent if flow.senders else received
    found = transits(trace, flow)
    transit = percentiles((found["received_ns"] - found["begin_ns"]) / 1e3, (50, 99))
    return {
        "run": flow.run,
        "edge": flow.edge,
        "sender": ", ".join(flow.senders),
        "receiver": ", ".join(flow.receivers),
        "sent": sent["messages"],
        "received": received["messages"],
        "lost": sent["messages"] - received["messages"] if flow.senders and flow.receivers else None,
        "bytes": either["bytes"],
        "frames": either["frames"],
        "send_us": _mean_us(sent),
        "receive_us": _mean_us(received),
        "send_eagain": sent["eagain"],
        "receive_eagain": received["eagain"],
        "transit_p50_us": transit["p50"],
        "transit_p99_us": transit["p99"],
    }


def _sums(ends: Ends, direction: str, writers: tuple[str, ...]) -> dict[str, int]:
    return {
        what: sum(ends[direction][writer].get(what, 0) for writer in writers) for what in ("messages", "bytes", "frames", "ns", "eagain")
    }


def _mean_us(sums: Mapping[str, int]) -> float:
    return sums["ns"] / sums["messages"] / 1e3 if sums["messages"] else np.nan
