"""From a running loop to the session's loop and back. The cell's own loop only waits; nothing about it is changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from mqlab.client.sync import LoopThread

T = TypeVar("T")

WAKE_S = 0.2
"""ipykernel (7.4) sees an interrupt of an awaiting cell only when its loop wakes for another reason; this is one."""


async def hop(thread: LoopThread, coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, computed on the thread's loop. Cancelling the wait cancels it there, and waits no longer.

    Raises:
        ClientClosedError: the thread is closed, before or meanwhile. Otherwise what the coroutine raised.
    """
    job = thread.submit(coroutine)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the waiting loop is closed: nobody waits any more
            loop.call_soon_threadsafe(ended.set)

    job.future.add_done_callback(wake)
    try:
        while not job.done:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAKE_S):
                    await ended.wait()
        return job.future.result()
    finally:
        if not job.done:
            job.cancel()
