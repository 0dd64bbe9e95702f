"""Start a program so that an interrupt loses no child."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """``subprocess.Popen``, from which an interrupt (SIGINT) that arrives midway leaves no child.

    ``Popen`` itself, broken off between the fork and its return, forgets a child that runs. Here the interrupt waits that long, and
    the child is ended before it is raised. A caller that enters its ``try`` in the next statement misses none.

    Args:
        options: as ``subprocess.Popen`` takes them.

    Raises:
        OSError: the program cannot be started. KeyboardInterrupt, or what a handler of SIGINT raises: it was interrupted.
    """
    child: subprocess.Popen[bytes] | None = None
    try:
        with _interrupts_held():
            child = subprocess.Popen[bytes](command, **options)
    except BaseException:
        if child is not None:
            end(child)
        raise
    assert child is not None
    return child


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold an interrupt back until the block is over. Only the main thread gets any, and only a handler of Python's can be held."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *call: held.append(call))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held[0])


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill a child if it runs, bury it, and close its pipes."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
