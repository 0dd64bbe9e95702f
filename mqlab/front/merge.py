"""Several streams, read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable, Mapping
from contextlib import aclosing
from typing import Generic, Self, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Merged(Generic[K, T]):
    """The items of all streams as they come, each with its stream's key; the first error is raised to the reader.

    A task per stream puts into one bounded queue: a slow reader holds all streams back. Close it to end what still runs.
    """

    def __init__(self, streams: Mapping[K, AsyncGenerator[T, None]]) -> None:
        self._queue: asyncio.Queue[tuple[K, T] | Exception | None] = asyncio.Queue(maxsize=len(streams))
        loop = asyncio.get_running_loop()
        self._pumps = {key: loop.create_task(self._pump(key, stream)) for key, stream in streams.items()}
        self._open = len(streams)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[K, T]:
        while self._open:
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item is not None:
                return item
            self._open -= 1
        raise StopAsyncIteration

    def end(self, key: K) -> None:
        """Close one stream early; an item of it may still be under way."""
        if self._pumps[key].cancel():
            self._open -= 1

    async def aclose(self) -> None:
        """Close all streams."""
        for pump in self._pumps.values():
            pump.cancel()
        await asyncio.gather(*self._pumps.values(), return_exceptions=True)

    async def _pump(self, key: K, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    await self._queue.put((key, item))
        except Exception as error:
            await self._queue.put(error)
        else:
            await self._queue.put(None)
