"""Work that recurses deeply, in a thread whose stack is deep enough."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

STACK_BYTES = 512 * 2**20
"""Of address space; memory is taken only as deep as the work goes."""

EXIT_S = 3.0
"""How long a process waits at its end for such a thread: one that comes back from foreign code after Python's end crashes."""

_SIZE = threading.Lock()
_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def on_deep_stack(work: Callable[[], T]) -> Future[T]:
    """Begin ``work`` in a thread of its own.

    Raises:
        RuntimeError: the system gives no more threads.
    """
    future: Future[T] = Future()
    thread = threading.Thread(target=_run, args=(work, future), name="deep", daemon=True)
    _started.add(thread)
    # The size is the whole process's: a thread that is started meanwhile elsewhere gets the same, which does it no harm.
    with _SIZE:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return future


def _run(work: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # a panic in Rust is none of Exception
        future.set_exception(error)


@atexit.register
def _see_out() -> None:
    for thread in tuple(_started):
        thread.join(EXIT_S)
