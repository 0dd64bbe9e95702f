"""What every kind of mailbox of a stream shares: who waits for it, and how it ends."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from mqlab.types import Delta


class Mailbox(ABC):
    """Where the deltas of one request arrive. All methods on the event loop's thread, but where its kind says otherwise.

    Attributes:
        finished: the last delta, or an error, has arrived.
        left: the reader is gone and the core was told; the mailbox stays until the request's last delta, so that its id cannot be
            taken by a new request which would then be given the old one's tokens.
    """

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.finished = False
        self.left = False

    @abstractmethod
    def put(self, delta: Delta) -> None:
        """Add what one step brought."""

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

    async def ended(self) -> None:
        """Wait until the stream has finished, for whoever wants its id next; for any number of them."""
        while not self.finished:
            await asyncio.shield(self._next())

    def _next(self) -> asyncio.Future[None]:
        """Becomes done with the next put; made anew once it is."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            waiter = self._waiter = asyncio.get_running_loop().create_future()
        return waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            try:  # noqa: SIM105  suppress() would cost more than the rest of this
                waiter.set_result(None)
            except asyncio.InvalidStateError:  # the loop cancelled it meanwhile, where another thread puts
                pass


class Holding(Mailbox):
    """One that holds what has arrived until its one reader takes it.

    Attributes:
        threaded: another thread than the loop's may put.
    """

    threaded = False

    @abstractmethod
    def take_nowait(self) -> Delta | None:
        """What has arrived and was not taken, or None.

        Raises:
            the error that the stream was failed with, once all deltas are taken.
        """

    @abstractmethod
    def arrival(self) -> asyncio.Future[None]:
        """To be awaited before the next ``take_nowait`` when that gave None."""

    async def take(self) -> Delta:
        """What has arrived and was not taken; waits for something."""
        while (delta := self.take_nowait()) is None:
            await self.arrival()
        return delta
