"""What a process of mqlab's own does last: it leaves by ``os._exit``, which waits for no thread and calls nobody's ``atexit``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

_last: list[Callable[[], object]] = []


def on_leave(call: Callable[[], object]) -> None:
    """Have something called, in the main thread, when this process stops in an orderly way. It must be quick."""
    _last.append(call)


def leave() -> None:
    """Call everything, newest first; what one raises keeps none of the others from it."""
    while _last:
        with contextlib.suppress(Exception):
            _last.pop()()
