"""Runs an application on a socket, and stops in bounded time whatever its clients do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn

from mqlab.config import ServerConfig
from mqlab.server.http.acceptor import Acceptor
from mqlab.server.http.direct import DirectProtocol
from mqlab.server.http.patience import Patience
from mqlab.server.http.tls import tls_context
from mqlab.wire.siblings import Siblings

_TICK_S = 0.02
_CUT_S = 1.0


class _Server(uvicorn.Server):
    """Leaves signals to whoever owns the process.

    Attributes:
        max_unsent: see DirectProtocol.
    """

    max_unsent: int | None = None

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None, patience: Patience | None, siblings: Siblings | None) -> None:
        super().__init__(config)
        self._siblings = siblings
        self._tls = tls
        self._patience = patience

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn.Server."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server."""
        await self.lifespan.startup()
        ahead = None if self._siblings is None else self._ahead
        acceptors: Any = [Acceptor(listener, self._protocol, self._make_room, self._tls, ahead) for listener in sockets or ()]
        self.servers = acceptors
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        protocol = DirectProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        protocol.patience, protocol.max_unsent = self._patience, self.max_unsent
        return protocol

    def _ahead(self, opening: int) -> bool:
        """Whether another front should take the next connection."""
        assert self._siblings is not None
        return self._siblings.ahead(len(self.server_state.connections) + opening)

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
        server: its settings; None for a private socket, whose clients are trusted to take their time.
        patience: with clients that are not; by default that of ``server``.
        siblings: of whoever shares the socket with others.

    Raises:
        ConfigError: its certificate cannot be used.
    """

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        server: ServerConfig | None = None,
        *,
        patience: Patience | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        settings = server or ServerConfig()
        config = uvicorn.Config(
            app,
            http=DirectProtocol,
            ws="none",
            loop="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive,
        )
        if patience is None and server is not None:
            patience = Patience(longest_body=int(server.max_body_mb * (1 << 20)))
        self._server = _Server(config, tls_context(settings), patience, siblings)
        if server is not None:
            self._server.max_unsent = server.max_unsent_kb << 10
        self._listener = listener
        self._task: asyncio.Task[None] | None = None

    @property
    def connections(self) -> frozenset[Any]:
        """The protocols of the connections that are open."""
        return frozenset(self._server.server_state.connections)

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
        await self._give_up()

    async def stop(self, flush: float) -> None:
        """End: answers under way have ``flush`` seconds to reach their readers, then their connections are cut."""
        assert self._task is not None, "started hosts only"
        await self.refuse()
        await asyncio.wait([self._task], timeout=flush)
        self._abort_all()
        done, _ = await asyncio.wait([self._task], timeout=_CUT_S)
        if done:
            return self._task.result()
        return await self._give_up()

    async def _give_up(self) -> None:
        """Wait no longer for the server, and for its work only so long; some does not mind that its client has gone."""
        assert self._task is not None, "started hosts only"
        self._task.cancel()
        _, deaf = await asyncio.wait({self._task, *self._server.server_state.tasks}, timeout=_CUT_S)
        for task in deaf:
            task.cancel()

    def _abort_all(self) -> None:
        acceptors: Any = self._server.servers
        for acceptor in acceptors:
            acceptor.cut()
        for connection in self.connections:
            transport: Any = connection.transport
            transport.abort()
