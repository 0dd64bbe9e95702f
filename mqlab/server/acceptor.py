"""Takes connections while there are files for them.

A process that has no file left cannot answer the connection that took the last one, nor open anything that an answer needs: event loops
then drop connections that nobody has read. Here who comes when few files are left waits in the listening socket, and idle
connections are closed to make room.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Callable

_RESERVED = 64
"""Files kept for all that is not a connection: an answer may need some."""

_BURST = 32
"""Connections taken in one turn of the loop."""

_RETRY_S = 0.05
_NO_ROOM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Acceptor:
    """Stands where uvicorn has an asyncio server.

    Args:
        listener: a listening socket that does not block.
        protocol: makes what serves a connection.
        make_room: called while no file is left: closes what can be closed.
    """

    def __init__(self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol], make_room: Callable[[], None]) -> None:
        self._listener = listener
        self._protocol = protocol
        self._make_room = make_room
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._last = max(files - _RESERVED, files // 2)
        self._serving = True
        self._loop.add_reader(listener, self._accept)

    def is_serving(self) -> bool:
        """Whether connections are taken, or will be when there is room."""
        return self._serving

    def close(self) -> None:
        """Take no more; those that were taken go on. Idempotent."""
        if not self._serving:
            return
        self._serving = False
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._timer is not None:
            self._timer.cancel()

    async def wait_closed(self) -> None:
        """Return when what was taken last is served or gone."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _accept(self) -> None:
        for _ in range(_BURST):
            try:
                connection, _ = self._listener.accept()
            except OSError as error:  # nobody there any more, mostly
                if error.errno in _NO_ROOM:
                    self._pause()
                return
            self._open(connection)
            # The lowest free number is given out: all below are taken.
            if connection.fileno() >= self._last:
                self._pause()
                return

    def _open(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._protocol, connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(_RETRY_S, self._resume)

    def _resume(self) -> None:
        if self._is_full():
            self._make_room()
            self._timer = self._loop.call_later(_RETRY_S, self._resume)
        else:
            self._loop.add_reader(self._listener, self._accept)

    def _is_full(self) -> bool:
        try:
            file = os.dup(self._listener.fileno())
        except OSError:
            return True
        os.close(file)
        return file >= self._last
