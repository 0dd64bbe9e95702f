"""A stream of outputs that a cell may read with ``async for`` or with ``for``, whichever loop it runs on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from mqlab.lab.hop import hop
from mqlab.lab.host import Host
from mqlab.types import Output


class Stream:
    """The outputs of one request, once. Nothing is sent before the first is asked for; leaving early aborts the request."""

    def __init__(self, host: Host, outputs: AsyncGenerator[Output, None]) -> None:
        self._host = host
        self._outputs = outputs

    def __iter__(self) -> Iterator[Output]:
        return self._host.thread.iterate(self._outputs)

    async def __aiter__(self) -> AsyncIterator[Output]:
        try:
            while (output := await hop(self._host.loop, _next(self._outputs))) is not None:
                yield output
        finally:
            if not self._host.thread.closed:
                await hop(self._host.loop, _close(self._outputs))


async def _next(outputs: AsyncGenerator[Output, None]) -> Output | None:
    return await anext(outputs, None)


async def _close(outputs: AsyncGenerator[Output, None]) -> None:
    await outputs.aclose()
