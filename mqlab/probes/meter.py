"""The counters and the events of the messages that go through a socket in one direction."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Protocol

from mqlab.probes.base import NOTHING, dropped
from mqlab.probes.sink import Sink
from mqlab.record.events import MESSAGE


class Direction(Protocol):
    """What the sockets of an edge tell of one direction. Never raises."""

    def opened(self) -> None:
        """One more socket is open."""
        ...

    def note(self, frames: int, size: int, begin_ns: int) -> None:
        """A whole message went through, in a call that began then; 0 where that says nothing."""
        ...

    def again(self) -> None:
        """A call found no room, or no message."""
        ...


class Meter:
    """The counters and the events of one direction of an edge. One thread; never raises once it is made.

    Args:
        edge: the last part of the address.
        direction: ``sent`` or ``received``.
        cost_ns: what counting one message takes.
    """

    def __init__(self, sink: Sink, edge: str, direction: str, cost_ns: int) -> None:
        name = self._name = f"socket.{edge}.{direction}"
        figures = [f"{name}.{word}" for word in ("messages", "bytes", "frames", "ns")]
        self._block = sink.block(*figures, *(f"probe.{name}.{word}" for word in ("events", "ns", "dropped")))
        self._refusals = sink.block(f"{name}.eagain")
        self._opened = sink.block(f"{name}.sockets")
        self._log = sink.log(MESSAGE, f"{edge}.{direction}")
        self._sink = sink  # which lives as long as anything writes there
        self._cost_ns = cost_ns
        self._messages = self._bytes = self._frames = self._ns = self._eagain = self._sockets = 0

    def opened(self) -> None:
        """See Direction.opened."""
        try:
            self._sockets += 1
            self._opened.write(self._sockets)
        except Exception as error:
            self._drop(error)

    def note(self, frames: int, size: int, begin_ns: int) -> None:
        """See Direction.note."""
        try:
            now = monotonic_ns()
            spent = begin_ns and now - begin_ns
            self._log.append(now, self._messages, frames, size, spent)
            self._messages += 1
            self._bytes += size
            self._frames += frames
            self._ns += spent
            count, cost = self._messages, self._messages * self._cost_ns
            self._block.write(count, self._bytes, self._frames, self._ns, count, cost, self._log.dropped)
        except Exception as error:
            self._drop(error)

    def again(self) -> None:
        """See Direction.again."""
        try:
            self._eagain += 1
            self._refusals.write(self._eagain)
        except Exception as error:
            self._drop(error)

    def _drop(self, error: Exception) -> None:
        if self._log is not NOTHING:
            self._log = self._block = self._refusals = self._opened = dropped(self._name, error)


def rehearse(sink: Sink) -> Callable[[], object]:
    """What counting a message adds to a call."""
    meter = Meter(sink, "scratch", "sent", 0)
    return lambda: meter.note(1, 100, monotonic_ns())
