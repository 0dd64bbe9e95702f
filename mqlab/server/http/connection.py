"""The other side of a request: its body, and whether it is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from mqlab.server.http.line import Line, until_gone

T = TypeVar("T")


async def read_body(receive: Receive) -> bytes:
    """The whole body, whose length the gate has bounded.

    Raises:
        ClientDisconnect.
    """
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def while_connected(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """Run ``work`` to its end, or cancel it when the client leaves: whoever has gone needs no tokens.

    Raises:
        ClientDisconnect: it left. Whatever ``work`` raises.
    """
    loop = asyncio.get_running_loop()
    tasks = working, leaving = loop.create_task(work), loop.create_task(until_gone(receive))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class Attended:
    """A block that is left with ClientDisconnect when the client is gone, wherever it waits: ``async with Attended(line)``.

    What ``while_connected`` does, without a task where the line needs none.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._gone = False

    async def __aenter__(self) -> None:
        task = self._task = asyncio.current_task()
        assert task is not None, "within a task"
        self._cancelling = task.cancelling()
        self._line.watch(self._leave)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._line.unwatch()
        assert self._task is not None, "entered blocks only"
        if self._gone and self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
            raise ClientDisconnect from error

    def _leave(self) -> None:
        assert self._task is not None, "entered blocks only"
        self._gone = True
        self._task.cancel()
