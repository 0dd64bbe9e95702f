"""The child streams of one request, read as one stream of deltas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from mqlab.client.base import EngineClient
from mqlab.types import Delta, Request


class Only:
    """A single child: the client's own stream, with nothing in between."""

    def __init__(self, client: EngineClient, request: Request) -> None:
        self._stream = client.generate(request)

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self._stream

    def end(self, request_id: str) -> None:
        """Nothing: with its only child ended, the reader closes the whole."""

    async def aclose(self) -> None:
        """Close the stream; a request that still runs is aborted."""
        await self._stream.aclose()


class Group:
    """Several children, interleaved as they arrive.

    A slow reader holds the pumps back, and the client merges what arrives meanwhile, so memory stays bounded.
    """

    def __init__(self, client: EngineClient, requests: Sequence[Request]) -> None:
        self._queue: asyncio.Queue[Delta | Exception] = asyncio.Queue(maxsize=len(requests))
        loop = asyncio.get_running_loop()
        self._pumps = {request.id: loop.create_task(_pump(client.generate(request), self._queue)) for request in requests}

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item

    def end(self, request_id: str) -> None:
        """Close one child early; a delta of it may still be under way."""
        self._pumps[request_id].cancel()

    async def aclose(self) -> None:
        """Close all children; what still runs is aborted."""
        for pump in self._pumps.values():
            pump.cancel()
        await asyncio.gather(*self._pumps.values(), return_exceptions=True)


def fan_out(client: EngineClient, requests: Sequence[Request]) -> Only | Group:
    """Start all children; one alone costs no task."""
    return Only(client, requests[0]) if len(requests) == 1 else Group(client, requests)


async def _pump(stream: AsyncGenerator[Delta, None], queue: asyncio.Queue[Delta | Exception]) -> None:
    try:
        async for delta in stream:
            await queue.put(delta)
    except Exception as error:
        await queue.put(error)
    finally:
        await stream.aclose()
