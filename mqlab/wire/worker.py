"""One daemon thread that runs one thing at a time for an event loop.

Unlike an executor's, its thread delays interpreter exit for a bounded time only: a step that hangs must not hold the user's notebook.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_EXIT_GRACE_S = 5.0
_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop | None, "asyncio.Future[Any] | None"]


class _Ending:
    """Tells a worker's thread to end, and first of all what it may be at."""

    def __init__(self, jobs: SimpleQueue[_Job | None]) -> None:
        self._jobs = jobs
        self.told: list[Callable[[], None]] = []

    def __call__(self) -> None:
        for tell in self.told:
            tell()
        self._jobs.put(None)


_alive: weakref.WeakKeyDictionary[threading.Thread, _Ending] = weakref.WeakKeyDictionary()


class Worker:
    """A thread named ``name``; ends when closed or dropped."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()
        self._ending = _alive[self._thread] = _Ending(self._jobs)
        self._finalizer = weakref.finalize(self, self._ending)

    async def run(self, function: Callable[[], T]) -> T:
        """The function's result, computed in the thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((function, loop, future))
        return await future

    def occupy(self, function: Callable[[], object], end: Callable[[], None]) -> None:
        """Run in the thread what runs for long and must not raise; ``end`` makes it return, and is called when the thread is to end."""
        self._ending.told.append(end)
        self._jobs.put((function, None, None))

    async def end(self, grace_s: float) -> bool:
        """End the thread; False when a job still ran after ``grace_s`` seconds, and goes on. Idempotent."""
        self._finalizer()
        deadline = time.monotonic() + grace_s
        while self._thread.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        return not self._thread.is_alive()


@atexit.register
def _end_all() -> None:
    # The interpreter aborts when it is taken down around native code, a model that still loads for instance.
    deadline = time.monotonic() + _EXIT_GRACE_S
    for thread, ending in list(_alive.items()):
        ending()
        thread.join(max(0.0, deadline - time.monotonic()))


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        function, loop, future = job
        try:
            result, error = function(), None
        except BaseException as raised:
            result, error = None, raised
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(_resolve, future, result, error)
        del job, function, loop, future, result, error


def _resolve(future: asyncio.Future[Any] | None, result: Any, error: BaseException | None) -> None:
    if future is None or future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
