"""The answers to several prompts, read as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

T = TypeVar("T")


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """The items of all streams as they come, each with its stream's number; the first error ends all.

    A slow reader holds all streams back. Leaving early closes them.
    """
    if len(streams) > 1:
        async with aclosing(_Pumps(streams)) as pumps:
            while (pair := await pumps.take()) is not None:
                yield pair
        return
    async with aclosing(streams[0]) as only:
        async for item in only:
            yield 0, item


class _Pumps(Generic[T]):
    """A task per stream, all of which put into one bounded queue."""

    def __init__(self, streams: Sequence[AsyncGenerator[T, None]]) -> None:
        self._open = len(streams)
        self._queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(maxsize=len(streams))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._pump(number, stream)) for number, stream in enumerate(streams)]

    async def _pump(self, number: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    await self._queue.put((number, item))
        except Exception as error:
            await self._queue.put(error)
        else:
            await self._queue.put(None)

    async def take(self) -> tuple[int, T] | None:
        """The next item; None when all streams have ended."""
        while self._open:
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item is not None:
                return item
            self._open -= 1
        return None

    async def aclose(self) -> None:
        """End all streams."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
