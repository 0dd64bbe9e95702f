"""One slot per stream: what has arrived and was not yet read, merged into one delta.

A reader that is slow costs its own unread token ids, never a queue of messages. Source: vLLM V1's one-slot collector (PR 15156).
"""

from __future__ import annotations

import asyncio

from mqlab.logprobs import join
from mqlab.types import Delta


class Slot:
    """The mailbox of one request. All methods on the event loop's thread.

    Attributes:
        finished: the last delta, or an error, has arrived.
        left: the reader is gone and the core was told; the slot stays until the request's last delta, so that its id cannot be
            taken by a new request which would then be given the old one's tokens.
    """

    def __init__(self) -> None:
        self._delta: Delta | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.finished = False
        self.left = False

    def put(self, delta: Delta) -> None:
        """Add what one step brought."""
        if delta.finish is not None:
            self.finished = True
        self._delta = delta if self._delta is None else merge(self._delta, delta)
        self._wake()

    def fail(self, error: Exception) -> None:
        """End the stream with an error, after what has arrived. A finished stream is left alone."""
        if not self.finished:
            self._error = error
            self.finished = True
            self._wake()

    @property
    def failed(self) -> bool:
        """Whether the stream was ended with an error."""
        return self._error is not None

    def take_nowait(self) -> Delta | None:
        """What has arrived since the last take, or None.

        Raises:
            the error that the stream was failed with, once all deltas are taken.
        """
        delta, self._delta = self._delta, None
        if delta is None and self._error is not None:
            raise self._error
        return delta

    async def take(self) -> Delta:
        """What has arrived since the last take; waits for something. For one reader."""
        while (delta := self.take_nowait()) is None:
            await self._next()
        return delta

    async def ended(self) -> None:
        """Wait until the stream has finished, for whoever wants its id next; for any number of them."""
        while not self.finished:
            await asyncio.shield(self._next())

    def _next(self) -> asyncio.Future[None]:
        if self._waiter is None or self._waiter.done():
            self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def merge(first: Delta, second: Delta) -> Delta:
    """Two consecutive deltas of one request as one."""
    return Delta(
        first.id,
        first.tokens + second.tokens,
        second.finish,
        second.stop_reason,
        second.error,
        None if first.text is None and second.text is None else (first.text or "") + (second.text or ""),
        join(first.logprobs, second.logprobs),
        first.prompt_logprobs,
        second.embedding,
    )
