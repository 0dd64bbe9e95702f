"""Takes connections while there are files for them.

A process that has no file left cannot answer the connection that took the last one, nor open anything that an answer needs: event loops
then drop connections that nobody has read. Here who comes when few files are left waits in the listening socket, and idle
connections are closed to make room.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import ssl
import struct
import sys
from collections.abc import Callable

_RESERVED = 64
"""Files kept for all that is not a connection: an answer may need some."""

_BURST = 32
"""Connections taken in one turn of the loop."""

_CROWD = 256
"""Connections that wait in the socket from which on as many are taken in one turn, whoever's turn it is: when its queue is full, the
kernel lets clients believe that they are connected, and resets them as soon as they speak."""

_RETRY_S = 0.05
_TURN_S = 0.02
"""How long another process has to take a connection that this one leaves to it."""

_TAKEN_OVER = 4
"""Connections taken in one turn when it has not."""

_HANDSHAKE_S = 10.0
"""For the beginning of an encrypted connection."""

_GOODBYE_S = 2.0
"""For its end: whoever closes it waits so long for the other side to agree."""

_TCPI_UNACKED = struct.Struct("24xI")

_NO_ROOM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Acceptor:
    """Stands where uvicorn has an asyncio server.

    Args:
        listener: a listening socket that does not block.
        protocol: makes what serves a connection.
        make_room: called while no file is left: closes what can be closed.
        tls: what connections are encrypted with; None where they are not.
        ahead: whether another process that takes connections from the same socket should take the next one, given how many are being
            opened here; what it has not taken after a while is taken here. None where there is no other.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        make_room: Callable[[], None],
        tls: ssl.SSLContext | None = None,
        ahead: Callable[[int], bool] | None = None,
    ) -> None:
        self._listener = listener
        self._protocol = protocol
        self._make_room = make_room
        self._tls = tls
        self._ahead = ahead
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._last = max(files - _RESERVED, files // 2)
        self._serving = True
        self._look()

    def is_serving(self) -> bool:
        """Whether connections are taken, or will be when there is room."""
        return self._serving

    def close(self) -> None:
        """Take no more than who has come so far; those that were taken go on. Idempotent."""
        if not self._serving:
            return
        self._serving = False
        while self._accept():  # closing the socket would cut off whoever waits in it
            pass
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._timer is not None:
            self._timer.cancel()

    def cut(self) -> None:
        """Give up connections that are only being opened."""
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return when what was taken last is served or gone."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _look(self) -> None:
        """Take who comes from now on."""
        self._loop.add_reader(self._listener, self._accept_next if self._ahead is None else self._accept_in_turn)

    def _accept_next(self) -> None:
        """Take some: more where many wait."""
        self._accept(_CROWD if _waiting(self._listener) >= _CROWD else _BURST)

    def _accept_in_turn(self) -> None:
        """Take one, or let another process do so: all are woken, and the quickest would have most."""
        assert self._ahead is not None, "in turns with others only"
        if _waiting(self._listener) >= _CROWD:
            self._accept(_CROWD)
        elif self._ahead(len(self._opening)):
            self._loop.remove_reader(self._listener)
            self._timer = self._loop.call_later(_TURN_S, self._take_over)
        else:
            self._accept(1)

    def _take_over(self) -> None:
        """Another process has had its time."""
        self._look()
        self._accept(_TAKEN_OVER)

    def _accept(self, most: int = _BURST) -> bool:
        """Take some; whether there may be more to take at once."""
        for _ in range(most):
            try:
                connection, _ = self._listener.accept()
            except OSError as error:  # nobody there any more, mostly
                if error.errno in _NO_ROOM:
                    self._pause()
                return False
            self._open(connection)
            # The lowest free number is given out: all below are taken.
            if connection.fileno() >= self._last:
                self._pause()
                return False
        return True

    def _open(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._connect(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, connection: socket.socket) -> None:
        limits = {} if self._tls is None else {"ssl_handshake_timeout": _HANDSHAKE_S, "ssl_shutdown_timeout": _GOODBYE_S}
        # Who left again, or speaks no TLS, has no connection: there is nobody to tell.
        with contextlib.suppress(OSError):
            await self._loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls, **limits)

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(_RETRY_S, self._resume)

    def _resume(self) -> None:
        if self._is_full():
            self._make_room()
            self._timer = self._loop.call_later(_RETRY_S, self._resume)
        else:
            self._look()

    def _is_full(self) -> bool:
        try:
            file = os.dup(self._listener.fileno())
        except OSError:
            return True
        os.close(file)
        return file >= self._last


def _waiting(listener: socket.socket) -> int:
    """Connections in a listening socket's queue (Linux tells: tcpi_unacked of TCP_INFO, tcp(7)); 0 where nobody tells."""
    if listener.family not in (socket.AF_INET, socket.AF_INET6) or not sys.platform.startswith("linux"):
        return 0
    return _TCPI_UNACKED.unpack_from(listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCPI_UNACKED.size))[0]
