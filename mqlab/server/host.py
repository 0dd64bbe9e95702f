"""Runs an application on a socket, and stops in bounded time whatever its clients do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from mqlab.config import ServerConfig
from mqlab.server.acceptor import Acceptor

_TICK_S = 0.02
_CUT_S = 1.0


class _Server(uvicorn.Server):
    """Leaves signals to whoever owns the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn.Server."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server."""
        await self.lifespan.startup()
        acceptors: Any = [Acceptor(listener, self._protocol, self._make_room) for listener in sockets or ()]
        self.servers = acceptors
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def _make_room(self) -> None:
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            if connection.cycle is not None:  # whose first request is still to come may have sent it
                connection.shutdown()  # idle ones now, the others behind their answer


class Host:
    """An HTTP server on the running event loop.

    Args:
        app: an ASGI application.
        listener: a listening socket; closed when the server stops.
        server: its settings; None for the defaults.
    """

    def __init__(self, app: Any, listener: socket.socket, server: ServerConfig | None = None) -> None:
        settings = server or ServerConfig()
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            loop="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=settings.keep_alive,
        )
        self._server = _Server(config)
        self._listener = listener
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when connections are being served."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve([self._listener]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(_TICK_S)
        if self._task.done():
            self._task.result()

    async def refuse(self) -> None:
        """Take no more connections, close idle ones; those with an open request go on."""
        self._server.should_exit = True
        while any(server.is_serving() for server in self._server.servers):
            await asyncio.sleep(_TICK_S)

    async def cut(self) -> None:
        """End at once: every connection is cut, whatever runs on it."""
        assert self._task is not None, "started hosts only"
        for server in self._server.servers:
            server.close()
        self._listener.close()
        self._abort_all()
        running = {self._task, *self._server.server_state.tasks}
        self._task.cancel()
        await asyncio.wait(running, timeout=_CUT_S)

    async def stop(self, flush: float) -> None:
        """End: answers under way have ``flush`` seconds to reach their readers, then their connections are cut."""
        assert self._task is not None, "started hosts only"
        await self.refuse()
        await asyncio.wait([self._task], timeout=flush)
        self._abort_all()
        await self._task

    def _abort_all(self) -> None:
        for connection in list(self._server.server_state.connections):
            transport: Any = connection.transport
            transport.abort()
