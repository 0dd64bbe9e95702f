"""SIGTERM and SIGINT as events of the loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


class Signals:
    """``stop`` is set with the first signal, ``again`` with the second."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.again = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._arrived)

    def _arrived(self) -> None:
        (self.again if self.stop.is_set() else self.stop).set()

    async def interrupts(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run ``work`` to its end, or cancel it at the first signal; whether that came."""
        await first(work, self.stop.wait())
        return self.stop.is_set()


async def first(*works: Coroutine[Any, Any, Any], timeout: float | None = None) -> None:
    """Return when one has ended, raise what it raised; cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
