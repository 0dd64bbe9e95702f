"""The other side of a request: its body, and whether it is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from mqlab.server.errors import ApiError

T = TypeVar("T")

MAX_BODY_BYTES = 64 << 20


async def read_body(receive: Receive) -> bytes:
    """The whole body.

    Raises:
        ApiError: 413, longer than 64 MiB. ClientDisconnect.
    """
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise ApiError(413, f"the body is longer than {MAX_BODY_BYTES} bytes; send less at once", code="body_too_long")
        if not message.get("more_body", False):
            return b"".join(parts)


async def while_connected(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """Run ``work`` to its end, or cancel it when the client leaves: whoever has gone needs no tokens.

    Raises:
        ClientDisconnect: it left. Whatever ``work`` raises.
    """
    loop = asyncio.get_running_loop()
    tasks = working, leaving = loop.create_task(work), loop.create_task(_gone(receive))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
