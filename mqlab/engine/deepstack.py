"""Work that recurses deeply, in a thread whose stack is deep enough."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

STACK_BYTES = 512 * 2**20
"""Of address space; memory is taken only as deep as the work goes."""

_SIZE = threading.Lock()


def on_deep_stack(work: Callable[[], T]) -> Future[T]:
    """Begin ``work`` in a thread of its own. Nothing waits for that thread at exit.

    Raises:
        RuntimeError: the system gives no more threads.
    """
    future: Future[T] = Future()
    # The size is the whole process's: a thread that is started meanwhile elsewhere gets the same, which does it no harm.
    with _SIZE:
        before = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=_run, args=(work, future), name="deep", daemon=True).start()
        finally:
            threading.stack_size(before)
    return future


def _run(work: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # a panic in Rust is none of Exception
        future.set_exception(error)
