"""One queue per stream: every delta as it came, however far behind its reader is.

Source: vLLM before its one-slot collector (AsyncLLMEngine, MQLLMEngine, V1 before PR 15156), each with an asyncio.Queue a request.
"""

from __future__ import annotations

import asyncio
from collections import deque

from mqlab.client.mailbox import Holding
from mqlab.types import Delta


class Queue(Holding):
    """Holds all deltas that were not taken, in order.

    A delta that does not end the request may be put from another thread than the event loop's, as some of those engines did: none is
    lost or taken twice. But that wakes no sleeping loop (asyncio.Future.set_result from afar does not), so the reader goes on when
    something else wakes it. asyncio's debug mode refuses such a put.
    """

    threaded = True

    def __init__(self) -> None:
        super().__init__()
        self._deltas: deque[Delta] = deque()

    def put(self, delta: Delta) -> None:
        """See Mailbox.put."""
        self._deltas.append(delta)
        if delta.finish is not None:
            self.finished = True
        self._wake()

    def take_nowait(self) -> Delta | None:
        """See Holding.take_nowait."""
        if self._deltas:
            return self._deltas.popleft()
        if self._error is not None:
            raise self._error
        return None

    def arrival(self) -> asyncio.Future[None]:
        """See Holding.arrival."""
        waiter = self._next()
        if self._deltas or self._error is not None:  # it came in between, from another thread that saw nobody wait
            self._wake()
        return waiter
