"""The ZeroMQ sockets of one process, opened and closed together.

Every socket gets HWM 0 (unlimited) and LINGER 0 unless said otherwise: the defaults (1000 and -1) lose messages at a ROUTER,
block a PUSH and let a close wait for ever.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import zmq
import zmq.asyncio

S = TypeVar("S", bound="zmq.Socket[Any]")

KINDS = {"push": zmq.PUSH, "pull": zmq.PULL, "router": zmq.ROUTER, "dealer": zmq.DEALER}


class SocketSet(Generic[S]):
    """A context and its sockets. Use from one thread, but for ``close``."""

    def __init__(self, context: zmq.Context[S], *, io_threads: int = 1) -> None:
        self._context = context
        self._context.set(zmq.IO_THREADS, io_threads)
        self._sockets: list[S] = []

    def bind(self, kind: str, address: str, *, hwm: int = 0, identity: bytes = b"") -> S:
        """Open a socket and bind it. ``kind`` is one of push, pull, router, dealer."""
        socket = self._open(kind, hwm, identity)
        socket.bind(address)
        return socket

    def connect(self, kind: str, address: str, *, hwm: int = 0, identity: bytes = b"") -> S:
        """Open a socket and connect it."""
        socket = self._open(kind, hwm, identity)
        socket.connect(address)
        return socket

    def close_socket(self, socket: S) -> None:
        """Close one socket before the rest; what it has not sent is dropped."""
        self._sockets.remove(socket)
        socket.close(linger=0)

    def close(self, *, linger_ms: int = 0, off_loop: bool = False) -> None:
        """Close all; idempotent.

        Args:
            linger_ms: how long what was not sent yet may take; 0 drops it.
            off_loop: skip the event loop's side, when no loop runs any more.
        """
        for socket in self._sockets:
            if off_loop:
                zmq.Socket.close(socket, linger=linger_ms)
            else:
                socket.close(linger=linger_ms)
        self._sockets.clear()
        if not self._context.closed:
            self._context.term()

    def _open(self, kind: str, hwm: int, identity: bytes) -> S:
        socket = self._context.socket(KINDS[kind])
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, hwm)
        socket.set(zmq.RCVHWM, hwm)
        if identity:
            socket.set(zmq.IDENTITY, identity)
        self._sockets.append(socket)
        return socket


def sync_sockets(*, io_threads: int = 1) -> SocketSet[zmq.Socket[bytes]]:
    """Sockets for an engine's loop."""
    return SocketSet(zmq.Context(), io_threads=io_threads)


def async_sockets(*, io_threads: int = 1) -> SocketSet[zmq.asyncio.Socket]:
    """Sockets for a client's event loop."""
    return SocketSet(zmq.asyncio.Context(), io_threads=io_threads)
