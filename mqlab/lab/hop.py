"""From a running loop to the session's loop and back. The cell's own loop only waits; nothing about it is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

WAKE_S = 0.2
"""ipykernel (7.4) sees an interrupt of an awaiting cell only when its loop wakes for another reason; this is one."""


async def hop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, computed on ``loop``, which runs in another thread. Cancelling the wait cancels it there."""
    answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))
    try:
        while not answer.done():
            await asyncio.wait({answer}, timeout=WAKE_S)
        return answer.result()
    finally:
        answer.cancel()
