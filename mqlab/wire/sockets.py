"""The ZeroMQ sockets of one process, opened and closed together.

Every socket gets HWM 0 (unlimited) and LINGER 0 unless said otherwise: the defaults (1000 and -1) lose messages at a ROUTER,
block a PUSH and let a close wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import zmq
import zmq.asyncio

from mqlab.errors import ConfigError

S = TypeVar("S", bound="zmq.Socket[Any]")

ClassOf = Callable[[str], Callable[..., S]]

KINDS = {"push": zmq.PUSH, "pull": zmq.PULL, "router": zmq.ROUTER, "dealer": zmq.DEALER}


class SocketSet(Generic[S]):
    """A context and its sockets. Use from one thread, but for ``close``.

    Args:
        class_of: what makes the socket of an edge, which is the last part of its address.
    """

    def __init__(self, context: zmq.Context[S], class_of: ClassOf[S], *, io_threads: int = 1) -> None:
        self._context = context
        self._class_of = class_of
        self._context.set(zmq.IO_THREADS, io_threads)
        self._classes: dict[str, Callable[..., S]] = {}
        self._sockets: dict[int, S] = {}

    def __len__(self) -> int:
        """How many are open."""
        return len(self._sockets)

    def limit(self, count: int | None) -> int:
        """How many may be open at once; before the first is. None is as many as the library can.

        Raises:
            ConfigError: that is more than the library can.
        """
        most = int(self._context.get(zmq.SOCKET_LIMIT))
        count = most if count is None else count
        if not 0 < count <= most:
            raise ConfigError(f"max_sockets={count} must be in [1, {most}]: {most} is the library's SOCKET_LIMIT, which cannot be raised")
        self._context.set(zmq.MAX_SOCKETS, count)
        return count

    def bind(self, kind: str, address: str, *, hwm: int = 0, identity: bytes = b"") -> S:
        """Open a socket and bind it. ``kind`` is one of push, pull, router, dealer."""
        socket = self._open(kind, address, hwm, identity)
        socket.bind(address)
        return socket

    def connect(self, kind: str, address: str, *, hwm: int = 0, identity: bytes = b"") -> S:
        """Open a socket and connect it."""
        socket = self._open(kind, address, hwm, identity)
        socket.connect(address)
        return socket

    def close_socket(self, socket: S) -> None:
        """Close one socket before the rest; what it has not sent is dropped. Idempotent."""
        if self._sockets.pop(id(socket), None) is not None:
            socket.close(linger=0)

    def close(self, *, linger_ms: int = 0, off_loop: bool = False) -> None:
        """Close all; idempotent.

        Args:
            linger_ms: how long what was not sent yet may take; 0 drops it.
            off_loop: skip the event loop's side, when no loop runs any more.
        """
        for socket in self._sockets.values():
            if off_loop:
                zmq.Socket.close(socket, linger=linger_ms)
            else:
                socket.close(linger=linger_ms)
        self._sockets.clear()
        if not self._context.closed:
            self._context.term()

    def _open(self, kind: str, address: str, hwm: int, identity: bytes) -> S:
        socket = self._context.socket(KINDS[kind], self._class(address.rpartition("/")[2]))
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, hwm)
        socket.set(zmq.RCVHWM, hwm)
        if identity:
            socket.set(zmq.IDENTITY, identity)
        self._sockets[id(socket)] = socket
        return socket

    def _class(self, edge: str) -> Callable[..., S]:
        # One for all sockets of an edge: what counts their messages counts them together.
        if edge not in self._classes:
            self._classes[edge] = self._class_of(edge)
        return self._classes[edge]


def plain_class(edge: str, role: str = "engine") -> type[zmq.Socket[bytes]]:
    """What makes an engine's sockets, or a helper's, where nothing meters them."""
    return zmq.Socket


def plain_async_class(edge: str, role: str = "front") -> type[zmq.asyncio.Socket]:
    """What makes a front's sockets, or those of an engine on an event loop, where nothing meters them."""
    return zmq.asyncio.Socket


def sync_sockets(class_of: ClassOf[zmq.Socket[bytes]] = plain_class) -> SocketSet[zmq.Socket[bytes]]:
    """Sockets for an engine's loop."""
    return SocketSet(zmq.Context(), class_of)


def async_sockets(class_of: ClassOf[zmq.asyncio.Socket] = plain_async_class, *, io_threads: int = 1) -> SocketSet[zmq.asyncio.Socket]:
    """Sockets for a client's event loop."""
    return SocketSet(zmq.asyncio.Context(), class_of, io_threads=io_threads)
