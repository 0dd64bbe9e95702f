"""A stream of outputs that a cell may read with ``async for`` or with ``for``, whichever loop it runs on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from mqlab.client.sync import LoopThread
from mqlab.errors import ClientClosedError
from mqlab.lab.hop import hop
from mqlab.types import Output


class Stream:
    """The outputs of one request, once. Nothing is sent before the first is asked for; leaving early aborts the request."""

    def __init__(self, thread: LoopThread, outputs: AsyncGenerator[Output, None]) -> None:
        self._thread = thread
        self._outputs = outputs
        self._turn = asyncio.Lock()  # on the thread's loop: a read that was given up may still clean up when the close comes

    def __iter__(self) -> Iterator[Output]:
        return self._thread.iterate(self._outputs)

    async def __aiter__(self) -> AsyncIterator[Output]:
        try:
            while (output := await hop(self._thread, self._next())) is not None:
                yield output
        finally:
            with contextlib.suppress(ClientClosedError):  # the thread closed, and the generator with it
                await hop(self._thread, self._close())

    async def _next(self) -> Output | None:
        async with self._turn:
            return await anext(self._outputs, None)

    async def _close(self) -> None:
        async with self._turn:
            await self._outputs.aclose()
