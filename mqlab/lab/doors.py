"""Where a session whose client lives in this kernel can be reached from outside: for other kernels, and over HTTP."""

from __future__ import annotations

from pathlib import Path

from mqlab.client.base import BaseClient
from mqlab.front.frontend import Frontend
from mqlab.server.attach.native import Door
from mqlab.server.http.host import Host
from mqlab.server.loopback import open_http
from mqlab.wire.native import SOCKET


class Doors:
    """The private socket and, once it is asked for, OpenAI's routes. All methods on the client's loop.

    Attributes:
        url: of OpenAI's routes here; None until they are opened.
        socket: path of the private socket; None until it is opened.
    """

    def __init__(self) -> None:
        self.url: str | None = None
        self.socket: Path | None = None
        self._door: Door | None = None
        self._host: Host | None = None

    async def open_private(self, client: BaseClient, recording: Path | None) -> None:
        """Answer on a socket in the client's run folder."""
        assert client.run_folder is not None, "a client whose engine is another process"
        self._door = await Door.open(client, client.run_folder, recording=recording)
        self.socket = client.run_folder / SOCKET

    async def open_http(self, front: Frontend) -> str:
        """The URL of OpenAI's routes, on a free port of 127.0.0.1; the same one every time."""
        if self.url is None:
            self.url, self._host = await open_http(front)
            if self._door is not None:
                self._door.announce(self.url)
        return self.url

    async def close(self) -> None:
        """Cut whoever is connected."""
        if self._door is not None:
            await self._door.close()
        if self._host is not None:
            await self._host.cut()
