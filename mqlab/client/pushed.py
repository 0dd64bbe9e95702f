"""A request whose deltas go to a sink as they arrive: what ``generate`` is for readers who wait, without anybody who waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from mqlab.client.boundary import as_exception
from mqlab.client.direct import Sink
from mqlab.client.mailbox import Holding, Mailbox
from mqlab.types import Delta, Request

if TYPE_CHECKING:
    from mqlab.client.base import BaseClient

_LOG = logging.getLogger(__name__)


class Pushed:
    """One request on its way to a sink; see EngineClient.push. All methods on the event loop's thread.

    A layout whose deltas may be put by another thread has them read by a task, which hands them on.

    Attributes:
        sink: where deltas go.
    """

    def __init__(self, client: BaseClient, request: Request, sink: Sink) -> None:
        self._client = client
        self._request = request
        self.sink = sink
        self._open = False
        self._last: Delta | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when the engine was handed the request; deltas may come before that.

        Raises:
            what ``generate`` raises before its first delta. The sink may have been told the same.
        """
        client = self._client
        request = self._request = client.admit(self._request)
        if client.streams.kind.threaded:
            slot = await client.streams.open(request)
            self._open = True
            await self._hand_over(slot)
            self._reading = asyncio.get_running_loop().create_task(self._read(slot))
        else:
            slot = await client.streams.open_direct(request, self)
            self._open = True
            await self._hand_over(slot)

    def leave(self) -> None:
        """Take no more; a request that still runs is aborted. Idempotent; nothing reaches the sink afterwards."""
        if self._open:
            self._open = False
            self._client.leave(self._request, self._last)
            if self._reading is not None:
                self._reading.cancel()

    def broke(self, error: Exception) -> None:
        """The sink raised, which must not harm others: it is told, and left."""
        if self._open:
            _LOG.error("what takes a request's tokens failed", exc_info=error)
            with contextlib.suppress(Exception):
                self.sink.fail(error)
            self.leave()

    def ended(self, delta: Delta) -> None:
        """The last delta has come."""
        self._last = delta
        if delta.error is not None:
            self.failed(as_exception(delta.error))
        elif self._open:
            self._give(delta)
            self.leave()

    def failed(self, error: Exception) -> None:
        """The stream has ended with an error."""
        if self._open:
            with contextlib.suppress(Exception):
                self.sink.fail(error)
            self.leave()

    def _give(self, delta: Delta) -> None:
        try:
            self.sink.put(delta)
        except Exception as error:
            self.broke(error)

    async def _hand_over(self, slot: Mailbox) -> None:
        try:
            await self._client.hand_over(self._request, slot)
        except BaseException:
            self.leave()
            raise

    async def _read(self, slot: Holding) -> None:
        try:
            while self._open:
                delta = await slot.take()
                if delta.finish is None:
                    self._give(delta)
                else:
                    self.ended(delta)
        except Exception as error:
            self.failed(error)
