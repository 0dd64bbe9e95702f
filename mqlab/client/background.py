"""Tasks that run beside a client, and hold it weakly, so that a dropped one can be collected."""

from __future__ import annotations

import asyncio
import weakref
from typing import Protocol


class Watchable(Protocol):
    """What is looked after."""

    def watch_once(self) -> None:
        """Look whether the engine is well."""
        ...


async def watch_loop(client: weakref.ref[Watchable], interval: float) -> None:
    """Look at the engine's step stamp every ``interval`` seconds, for as long as the client exists."""
    while (strong := client()) is not None:
        strong.watch_once()
        del strong
        await asyncio.sleep(interval)


def cancel_from_anywhere(loop: asyncio.AbstractEventLoop, *tasks: asyncio.Task[None]) -> None:
    """Cancel tasks of a loop, of which this may not be the thread, and which may be closed: for finalizers."""
    for task in tasks:
        if not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
