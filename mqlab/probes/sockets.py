"""Sockets that count: messages, bytes, frames and time of the calls, each direction apart, and every message as an event.

An asyncio socket of pyzmq sends and receives through a synchronous shadow of itself. Metering the shadow counts what really goes through,
when it does, and frame by frame, by the same code as in an engine's loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import Any

import zmq
import zmq.asyncio

from mqlab.probes.base import NOTHING, attempt
from mqlab.probes.cost import cost_ns
from mqlab.probes.meter import Direction, Meter, rehearse
from mqlab.probes.sink import Sink

_SENDERS = frozenset((zmq.PUSH, zmq.DEALER, zmq.ROUTER))
_RECEIVERS = frozenset((zmq.PULL, zmq.DEALER, zmq.ROUTER))
# Plain numbers: pyzmq's own are enums, whose operators take longer than all the counting.
_DONTWAIT = int(zmq.DONTWAIT)
_SNDMORE = int(zmq.SNDMORE)
_send, _recv = zmq.Socket.send, zmq.Socket.recv


class MeteredSocket(zmq.Socket[bytes]):
    """A socket that counts its messages, and otherwise is what it was made from.

    Args:
        meter: makes what counts a direction, ``sent`` or ``received``.
        kind: of the socket, also where it is the shadow of another.
    """

    _sent: Direction
    _received: Direction
    _held_frames = 0
    _held_bytes = 0

    def __init__(self, *args: Any, meter: Callable[[str], Direction], kind: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if kind in _SENDERS:
            self._sent = meter("sent")
        if kind in _RECEIVERS:
            self._received = meter("received")

    def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False, **kwargs: Any) -> Any:  # type: ignore[override]
        """See zmq.Socket.send. A multipart message is counted with its last frame."""
        begin = monotonic_ns()
        try:
            sent = _send(self, data, flags or _DONTWAIT, copy, track, **kwargs)
        except zmq.Again:
            self._sent.again()
            if flags:
                raise
            sent = _send(self, data, flags, copy, track, **kwargs)
        if flags and int(flags) & _SNDMORE:
            self._held_frames += 1
            self._held_bytes += len(data)
        else:
            self._note_sent(len(data), begin)
        return sent

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:  # type: ignore[override]
        """See zmq.Socket.recv: a message of one frame. One of several is for ``recv_multipart``."""
        begin = monotonic_ns()
        try:
            frame = _recv(self, flags or _DONTWAIT, copy, track)
        except zmq.Again:
            self._received.again()
            if flags:
                raise
            frame = _recv(self, flags, copy, track)
            begin = 0  # most of that was no work but waiting
        self._received.note(1, len(frame), begin)
        return frame

    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:  # type: ignore[override]
        """See zmq.Socket.recv_multipart."""
        begin = monotonic_ns()
        try:
            frames = [_recv(self, flags or _DONTWAIT, copy, track)]
        except zmq.Again:
            self._received.again()
            if flags:
                raise
            frames = [_recv(self, flags, copy, track)]
            begin = 0  # most of that was no work but waiting
        while self.getsockopt(zmq.RCVMORE):
            frames.append(_recv(self, flags, copy, track))
        self._received.note(len(frames), sum(map(len, frames)), begin)
        return frames

    def _note_sent(self, size: int, begin: int) -> None:
        frames = 1
        if self._held_frames:
            frames += self._held_frames
            size += self._held_bytes
            self._held_frames = self._held_bytes = 0
        self._sent.note(frames, size, begin)


class MeteredAsyncSocket(zmq.asyncio.Socket):
    """An asyncio socket whose every message goes through a MeteredSocket."""

    def __init__(self, context: zmq.Context[Any], kind: int, *, meter: Callable[[str], Direction]) -> None:
        super().__init__(context, kind)  # type: ignore[misc]  pyzmq's own overloads do not fit its subclass
        self._shadow_sock = MeteredSocket(shadow=self.underlying, meter=meter, kind=kind)


def sync_class(edge: str, *, folder: Path, role: str = "engine") -> Callable[..., zmq.Socket[bytes]]:
    """What opens the socket of an edge in an engine's process, or in that of a helper; a plain one where the folder cannot be written."""
    return attempt("sockets", lambda: partial(_sync_socket, meter=_meters(folder, role, edge)), zmq.Socket)


def async_class(edge: str, *, folder: Path, role: str = "front") -> Callable[..., zmq.asyncio.Socket]:
    """What opens an event loop's sockets of an edge; plain ones where the folder cannot be written."""
    return attempt("sockets", lambda: partial(MeteredAsyncSocket, meter=_meters(folder, role, edge)), zmq.asyncio.Socket)


def _sync_socket(context: zmq.Context[Any], kind: int, *, meter: Callable[[str], Direction]) -> MeteredSocket:
    return MeteredSocket(context, kind, meter=meter, kind=kind)


def _meters(folder: Path, role: str, edge: str) -> Callable[[str], Direction]:
    sink, cost = Sink.of(folder, role), cost_ns(rehearse)
    made: dict[str, Direction] = {}  # the sockets of an edge count together

    def meter(direction: str) -> Direction:
        if direction not in made:
            made[direction] = attempt(f"socket.{edge}.{direction}", lambda: Meter(sink, edge, direction, cost), NOTHING)
        made[direction].opened()
        return made[direction]

    return meter
