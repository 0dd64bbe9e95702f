"""Wait for something to become true, with a deadline: the one place in the tests that sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

POLL_S = 0.01


async def until(predicate: Callable[[], object], timeout: float = 5.0, interval: float = POLL_S) -> None:
    """Let the loop run until ``predicate()`` is true.

    Raises:
        TimeoutError: it was not within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while not predicate():
        _check(predicate, deadline, timeout)
        await asyncio.sleep(interval)


def until_sync(predicate: Callable[[], object], timeout: float = 5.0, interval: float = POLL_S) -> None:
    """Block until ``predicate()`` is true.

    Raises:
        TimeoutError: it was not within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while not predicate():
        _check(predicate, deadline, timeout)
        time.sleep(interval)


def _check(predicate: Callable[[], object], deadline: float, timeout: float) -> None:
    if time.monotonic() > deadline:
        name = getattr(predicate, "__qualname__", repr(predicate))
        raise TimeoutError(f"{name} was not true within {timeout:g} s")
