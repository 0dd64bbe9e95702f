"""The one synchronous façade: an event loop on a thread of its own, for callers that do not await.

Works whether or not the calling thread runs a loop itself (a notebook cell, a running task): nothing of asyncio is patched and no
policy is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

from mqlab.errors import CallTimeout, ClientClosedError, MqlabError

T = TypeVar("T")

_CANCEL_GRACE_S = 5.0
_JOIN_S = 5.0
_CLOSED = "it is closed; make a new one"
_END = object()
_Started = Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]


class LoopThread:
    """An event loop (uvloop's where it can be imported) in a daemon thread, from now until ``close``, garbage collection or exit.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str = "mqlab-loop") -> None:
        started: _Started = Future()
        self._jobs: set[Job[Any]] = set()
        self._thread = threading.Thread(target=_serve, args=(started, self._jobs), name=name, daemon=True)
        self._thread.start()
        self._loop, stop = started.result()
        self._finalizer = weakref.finalize(self, _stop, self._thread, self._loop, stop)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return not self._finalizer.alive

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the loop's own, which must never wait for itself."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Job[T]:
        """Start a coroutine on the loop and return at once.

        Raises:
            ClientClosedError: the loop is closed.
        """
        if self.closed:
            coroutine.close()
            raise ClientClosedError(_CLOSED)
        return Job(self._loop, coroutine, self._jobs)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for it. An interrupt or timeout cancels it, and the loop goes on.

        Raises:
            CallTimeout: no result within ``timeout`` seconds. ClientClosedError: closed, before or meanwhile.
            MqlabError: called from the loop's own thread. Otherwise what the coroutine raised.
        """
        if self.is_current:
            coroutine.close()
            raise MqlabError("a blocking call from inside its own event loop would wait for itself: await the async method instead")
        return self.submit(coroutine).result(timeout)

    def iterate(self, stream: AsyncGenerator[T, None]) -> Iterator[T]:
        """Read an async generator from here. Closing or dropping the iterator closes the generator."""
        try:
            while (item := self.run(_next(stream))) is not _END:
                yield item
        finally:
            self._close_stream(stream)

    def cancel(self, jobs: Iterable[Job[Any]]) -> None:
        """Cancel jobs and wait until they have cleaned up; does not wait when called on the loop itself."""
        jobs = tuple(jobs)
        for job in jobs:
            job.cancel()
        if not self.is_current:
            wait([job.future for job in jobs], _CANCEL_GRACE_S)

    def close(self) -> None:
        """Cancel what still runs, close the loop, end the thread. Idempotent.

        Waits 5 s at most for a loop that is stuck in a step, and not at all when called on the loop itself.
        """
        self._finalizer()

    def _close_stream(self, stream: AsyncGenerator[Any, None]) -> None:
        # The collector may drop an iterator on any thread, the loop's own too, and after the loop was closed, which closes streams.
        with contextlib.suppress(ClientClosedError):
            job = self.submit(_aclose(stream))
            if not self.is_current:
                job.result()


class Job(Generic[T]):
    """A coroutine on its way on a loop thread.

    Attributes:
        future: its end, in whatever way; waiting on it directly cancels nothing.

    Args:
        loop: the thread's loop.
        coroutine: to be run there.
        jobs: the thread's unfinished jobs; this one is in it until it ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], jobs: set[Job[Any]]) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._jobs = jobs
        self._task: asyncio.Task[T] | None = None
        self.future: Future[T] = Future()
        jobs.add(self)
        try:
            loop.call_soon_threadsafe(self._start)
        except RuntimeError:  # closed a moment ago, by another thread
            self.abandon()

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.future.done()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end. An interrupt or timeout of the wait cancels the coroutine and lets it clean up.

        Raises:
            CallTimeout: no result within ``timeout`` seconds. ClientClosedError: cancelled, or the loop closed, meanwhile.
            Otherwise what the coroutine raised.
        """
        try:
            return self.future.result(timeout)
        except BaseException as error:
            if self.done:
                if isinstance(error, TimeoutError):  # it ended just as the wait did
                    return self.future.result()
                raise
            self.cancel()
            wait([self.future], _CANCEL_GRACE_S)
            if isinstance(error, TimeoutError):
                raise CallTimeout(f"no result within {timeout} s; the call was cancelled") from None
            raise

    def cancel(self) -> None:
        """Ask the coroutine to end, if it still runs."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the coroutine
            self._loop.call_soon_threadsafe(self._cancel)

    def abandon(self) -> None:
        """The loop closed before the coroutine could start. Called by whoever notices first, or by both."""
        try:
            self._jobs.remove(self)
        except KeyError:
            return
        self._coroutine.close()
        self.future.set_exception(ClientClosedError(_CLOSED))

    def _start(self) -> None:
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._settle)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _settle(self, task: asyncio.Task[T]) -> None:
        self._jobs.discard(self)
        if task.cancelled():
            self.future.set_exception(ClientClosedError("the call was cancelled, or its loop closed, while it ran"))
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())


async def _next(stream: AsyncGenerator[T, None]) -> Any:
    return await anext(stream, _END)


async def _aclose(stream: AsyncGenerator[Any, None]) -> None:
    await stream.aclose()


def _serve(started: _Started, jobs: set[Job[Any]]) -> None:
    """The thread. Leaving the runner cancels tasks and closes async generators, the executor and the loop."""
    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(_until_stopped(started))
    except OSError as error:
        if started.done():
            raise
        started.set_exception(error)  # no file descriptor left for a loop
    for job in tuple(jobs):
        job.abandon()


async def _until_stopped(started: _Started) -> None:
    stop = asyncio.Event()
    started.set_result((asyncio.get_running_loop(), stop))
    await stop.wait()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _stop(thread: threading.Thread, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # a loop that is closed already
        loop.call_soon_threadsafe(stop.set)
    if threading.current_thread() is not thread:
        thread.join(_JOIN_S)
