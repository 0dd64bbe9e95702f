"""OpenAI's routes over one client on one socket: a whole server's front, or one of several."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from mqlab.client.base import BaseClient
from mqlab.config import ServerConfig
from mqlab.front.frontend import Frontend
from mqlab.front.textmodel import TextModel
from mqlab.server.app import build_app
from mqlab.server.http.host import Host
from mqlab.server.state import ServerState
from mqlab.wire.siblings import Siblings

_FLUSH_S = 0.5


class HttpFront:
    """A front in this process. See Serving.

    Args:
        client: started; closed when the front is stopped.
        text: its model's tokenizer and template; None loads them.
        listener: where it takes connections; others may take some there, too.
        index, count, siblings: which one of how many it is, and what these know of each other.
        tally_folder: where several fronts keep their counts.
    """

    def __init__(
        self,
        client: BaseClient,
        text: TextModel | None,
        listener: socket.socket,
        server: ServerConfig,
        *,
        index: int = 0,
        count: int = 1,
        siblings: Siblings | None = None,
        tally_folder: Path | None = None,
    ) -> None:
        self._client = client
        front = Frontend(client, text) if text else Frontend.of(client)
        self._state = ServerState(front, server, front_index=index, front_count=count, tally_folder=tally_folder)
        self._host = Host(build_app(self._state), listener, server, siblings=siblings)

    async def start(self) -> None:
        """See Serving.start."""
        await self._host.start()

    async def failed(self) -> None:
        """See Serving.failed: it cannot, apart from its process."""
        await asyncio.get_running_loop().create_future()

    async def refuse(self) -> None:
        """See Serving.refuse."""
        self._state.draining = True
        await self._host.refuse()

    async def drained(self) -> None:
        """See Serving.drained."""
        await self._state.drained()

    async def stop(self) -> None:
        """See Serving.stop."""
        # First the client: what still streams then ends with an error event, before its connection is cut.
        await self._client.close()
        await self._host.stop(_FLUSH_S)
