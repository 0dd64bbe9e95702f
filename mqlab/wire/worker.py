"""One daemon thread that runs one thing at a time for an event loop.

Unlike an executor's, its thread never delays interpreter exit: a step that hangs must not hold the user's notebook.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Worker:
    """A thread named ``name``; ends when closed or dropped."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, self._jobs.put, None)

    async def run(self, function: Callable[[], T]) -> T:
        """The function's result, computed in the thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((function, loop, future))
        return await future

    def close(self, timeout: float = 0.5) -> None:
        """End the thread; waits ``timeout`` seconds for a running job and no longer. Idempotent."""
        self._finalizer()
        self._thread.join(timeout)


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        function, loop, future = job
        try:
            result, error = function(), None
        except BaseException as raised:
            result, error = None, raised
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(_resolve, future, result, error)
        del job, function, loop, future, result, error


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
