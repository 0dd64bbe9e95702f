"""A process between an engine and its front, such as a detokenizer: when each step's message came to it, and when it went on.

It works off one message at a time. So what it sends is made of what it had received last; which of its messages carries a step is
inferred, as that of the engine is.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from mqlab.record.columns import Columns, columns, where
from mqlab.record.edges import RECEIVED, SENT, flows
from mqlab.record.facts import in_order

if TYPE_CHECKING:
    from mqlab.record.trace import Trace


@dataclass(frozen=True)
class Relay:
    """What it did with each step's message: stamps in ns, int64 [steps], -1 where there is none.

    Attributes:
        writer: the process.
        sent_ns: the engine began to send it.
        came_ns: the process had it.
        went_ns: the process began to send what it made of it.
        received_ns: the front had that.
    """

    writer: str
    sent_ns: np.ndarray
    came_ns: np.ndarray
    went_ns: np.ndarray
    received_ns: np.ndarray


def find_relay(trace: Trace, run: str, engine: str, front: str, ends: np.ndarray) -> Relay | None:
    """The process that receives what the engine sends, and sends to the front; None where there is none.

    Args:
        ends: of the engine's steps, ns, int64 [steps], in order.
    """
    known = [flow for flow in flows(trace) if flow.run == run]
    for first, second in product(known, known):
        (writer, *others) = first.receivers or ("",)
        ours = engine in first.senders and writer in second.senders and front in second.receivers
        if ours and not others and writer not in (engine, front):
            return _relay(trace, run, (engine, writer, front), (first.edge, second.edge), ends)
    return None


def _relay(trace: Trace, run: str, ways: tuple[str, str, str], edges: tuple[str, str], ends: np.ndarray) -> Relay:
    (engine, writer, front), (first, second) = ways, edges
    sent, came = _messages(trace, run, first, engine, SENT), _messages(trace, run, first, writer, RECEIVED)
    went, received = _messages(trace, run, second, writer, SENT), _messages(trace, run, second, front, RECEIVED)
    sent_ns = _take(_begin(sent), in_order(ends, sent["stamp_ns"]))
    went_ns = _take(_begin(went), _after(sent_ns, went["stamp_ns"]))
    came_ns = _take(came["stamp_ns"], np.searchsorted(came["stamp_ns"], went_ns, side="right") - 1)
    received_ns = _take(received["stamp_ns"], _after(went_ns, received["stamp_ns"]))
    return Relay(writer, sent_ns, came_ns, went_ns, received_ns)


def _messages(trace: Trace, run: str, edge: str, writer: str, direction: str) -> Columns:
    return columns(where(trace.tables["messages"], run=run, edge=edge, writer=writer, direction=direction))


def _begin(messages: Columns) -> np.ndarray:
    return messages["stamp_ns"] - messages["duration_ns"]


def _after(stamps: np.ndarray, messages: np.ndarray) -> np.ndarray:
    """``in_order`` of those that have a stamp; -1 for the others."""
    index = np.full(len(stamps), -1, dtype=np.int64)
    index[stamps >= 0] = in_order(stamps[stamps >= 0], messages)
    return index


def _take(stamps: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Those that an index names; -1 where it names none."""
    return np.where(index >= 0, stamps[index], -1) if len(stamps) else np.full(len(index), -1, dtype=np.int64)
