"""The routes of a front process's private socket; mqlab.wire.native says what they are."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import msgspec
from starlette.types import Receive, Scope, Send

from mqlab.client.base import BaseClient
from mqlab.client.local import LocalClient
from mqlab.server.attach.channel import ServerChannel
from mqlab.server.http.host import Host
from mqlab.server.http.listener import listen_unix
from mqlab.server.openai.stream import respond
from mqlab.wire.native import SOCKET, FrontInfo
from mqlab.wire.statspage import PAGE

_DRAIN_POLL_S = 0.02


class Native:
    """The application over one engine, token level.

    Args:
        client: a started client with a run folder.
        info: what ``GET /info`` answers, but for the model and the processes, which may change; may be replaced.

    Attributes:
        draining: no new requests are taken.
    """

    def __init__(self, client: BaseClient, info: FrontInfo) -> None:
        self._client = client
        self.info = info
        self.draining = False
        self._numbers = itertools.count()
        self._channels: set[ServerChannel] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        client = self._client
        match scope["method"], scope["path"]:
            case "GET", "/info":
                await respond(send, 200, msgspec.json.encode(msgspec.structs.replace(self.info, model=client.info, pids=client.pids)))
            case "GET", "/health":
                health = await self._client.check()
                await respond(send, 200 if health.ok else 503, msgspec.json.encode(health))
            case "GET", "/stats":
                await respond(send, 200, msgspec.json.encode(self._client.glance()))
            case "POST", "/channel":
                await self._serve(ServerChannel(self._client, self._next_prefix(), lambda: self.draining), receive, send)
            case method, path:
                await respond(send, 404, msgspec.json.encode({"error": f"there is no {method} {path} on this socket"}))

    @property
    def busy(self) -> bool:
        """Whether a client has something coming."""
        return any(channel.busy for channel in self._channels)

    async def _serve(self, channel: ServerChannel, receive: Receive, send: Send) -> None:
        self._channels.add(channel)
        try:
            await channel.serve(receive, send)
        finally:
            self._channels.remove(channel)

    def _next_prefix(self) -> str:
        """The first client, the one that launched the front where one did, has its ids in the engine as they are."""
        number = next(self._numbers)
        return f"client{number}-" if number else ""


class Door:
    """The private socket of a front process; answers from ``open`` until ``close``."""

    def __init__(self, client: BaseClient, native: Native, host: Host) -> None:
        self._native = native
        self._host = host
        self._beat = asyncio.get_running_loop().create_task(_beat(client))

    @staticmethod
    async def open(client: BaseClient, folder: Path, *, url: str | None = None, recording: Path | None = None) -> Door:
        """Answer on the socket in a folder of mode 0700, for a started client that has a run folder.

        Args:
            url: where this process serves OpenAI's routes.
            recording: folder that its processes record into.
        """
        native = Native(client, _front_info(client, url, recording))
        host = Host(native, listen_unix(folder / SOCKET))
        await host.start()
        return Door(client, native, host)

    def announce(self, url: str) -> None:
        """From now on this process serves OpenAI's routes there."""
        self._native.info = msgspec.structs.replace(self._native.info, url=url)

    def refuse(self) -> None:
        """Take no more requests; those that run go on."""
        self._native.draining = True

    async def drained(self) -> None:
        """Return when whoever is attached has all that was asked for."""
        while self._native.busy:
            await asyncio.sleep(_DRAIN_POLL_S)

    async def close(self) -> None:
        """Cut the connections of whoever is attached."""
        self._beat.cancel()
        await self._host.cut()


async def _beat(client: BaseClient) -> None:
    """Stamp the page of an engine in this process: whoever is attached judges by that whether this loop turns."""
    while isinstance(client, LocalClient):
        client.beat()
        await asyncio.sleep(client.timing.idle_interval)


def _front_info(client: BaseClient, url: str | None, recording: Path | None) -> FrontInfo:
    assert client.run_folder is not None, "a client whose page is published"
    return FrontInfo(
        model=client.info,
        shape=client.shape,
        pids=client.pids,
        page=str(client.run_folder / PAGE),
        url=url,
        recording=None if recording is None else str(recording),
    )
