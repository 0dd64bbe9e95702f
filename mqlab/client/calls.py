"""The control calls of a client that wait for their replies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from mqlab.errors import CallError, MqlabError
from mqlab.types import Reply


class Calls:
    """Calls by number. All methods on the event loop's thread."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def one(self) -> Iterator[tuple[int, asyncio.Future[Any]]]:
        """A new call's number, and what becomes its reply's value; forgotten when the block is left."""
        number = next(self._numbers)
        future = self._futures[number] = asyncio.get_running_loop().create_future()
        try:
            yield number, future
        finally:
            del self._futures[number]
            if future.done() and not future.cancelled():
                future.exception()  # seen: a send that failed first is what the caller is told

    def settle(self, reply: Reply) -> None:
        """A reply has come; to one that waits no more, it is nothing."""
        future = self._futures.get(reply.id)
        if future is None or future.done():
            return
        if reply.error is None:
            future.set_result(reply.value)
        else:
            future.set_exception(CallError(reply.error))

    def fail(self, make_error: Callable[[], MqlabError]) -> None:
        """End all that wait, each with an error of its own."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(make_error())
