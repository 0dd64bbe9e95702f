"""The client's end of a channel to a front process: commands out, events in, over one request and its response."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import aiohttp
import msgspec

from mqlab.types import Abort, Command, Event
from mqlab.wire.codecs import MsgpackCodec
from mqlab.wire.native import BASE, FrontInfo, Unframer, frame


class Owner(Protocol):
    """Whose channel it is."""

    def deliver(self, event: Event) -> None:
        """Take what the front sent."""
        ...

    def cut_off(self, cause: str) -> None:
        """The front sends nothing any more."""
        ...


class Channel:
    """One connection to a front's private socket. All on the running loop.

    Attributes:
        info: what the front said of itself; fails where none answers.

    Args:
        socket: path of the front's socket.
        patience: seconds from the end of the connection until the owner is told, for who may learn a better reason meanwhile.
    """

    def __init__(self, socket: Path, *, patience: float = 0.0) -> None:
        self._socket = socket
        self._patience = patience
        self._codec = MsgpackCodec()
        self._outgoing: list[bytes] = []
        self._filled = asyncio.Event()
        self.info: asyncio.Future[FrontInfo] = asyncio.get_running_loop().create_future()

    def post(self, command: Command) -> None:
        """Hand a command over; it leaves with the next turn of the loop."""
        self._outgoing.append(frame(self._codec.encode(command)))
        self._filled.set()

    async def attend(self, owner: weakref.ref[Owner]) -> None:
        """Connect and carry traffic, for as long as the owner exists; it is held only while it takes an event."""
        cause = "the front process closed its connection: it was stopped, or it died"
        try:
            await self._traffic(owner)
        except (aiohttp.ClientError, OSError) as error:
            if not self.info.done():
                self.info.set_exception(ConnectionError(f"no front process answers at {self._socket}: {error}"))
                return
        except Exception as error:
            cause = f"a message of the front process could not be handled: {type(error).__name__}: {error}"
        await asyncio.sleep(self._patience)
        if (strong := owner()) is not None:
            strong.cut_off(cause)

    async def _traffic(self, owner: weakref.ref[Owner]) -> None:
        connector = aiohttp.UnixConnector(str(self._socket), limit=0)
        timeout, cookies = aiohttp.ClientTimeout(total=None), aiohttp.DummyCookieJar()
        async with (
            aiohttp.ClientSession(BASE, connector=connector, timeout=timeout, cookie_jar=cookies) as session,
            session.post("/channel", data=self._commands()) as response,
        ):
            # Asked once the channel is there, which tells of every change from then on.
            self.info.set_result(await self._ask(session))
            await self._receive(response, owner)

    async def _ask(self, session: aiohttp.ClientSession) -> FrontInfo:
        async with session.get("/info") as response:
            return msgspec.json.decode(await response.read(), type=FrontInfo)

    async def _receive(self, response: aiohttp.ClientResponse, owner: weakref.ref[Owner]) -> None:
        unframer = Unframer()
        async for data in response.content.iter_any():
            for message in unframer.feed(data):
                if (strong := owner()) is None:
                    return
                strong.deliver(self._codec.event(message))
                del strong
                # A burst would keep the loop to itself, and its readers would see it as one delta.
                await asyncio.sleep(0)

    async def _commands(self) -> AsyncIterator[bytes]:
        self.post(Abort(()))  # says nothing; but the head of the request leaves with the first of its body
        while True:
            await self._filled.wait()
            self._filled.clear()
            data, self._outgoing = b"".join(self._outgoing), []
            yield data
