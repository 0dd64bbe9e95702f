"""One slot per stream: what has arrived and was not yet read, merged into one delta.

A reader that is slow costs its own unread token ids, never a queue of messages. Source: vLLM V1's one-slot collector (PR 15156).
"""

from __future__ import annotations

import asyncio

from mqlab.client.mailbox import Mailbox
from mqlab.logprobs import join
from mqlab.types import Delta


class Slot(Mailbox):
    """Holds one delta: all that has arrived since the last take. On the event loop's thread only."""

    def __init__(self) -> None:
        super().__init__()
        self._delta: Delta | None = None

    def put(self, delta: Delta) -> None:
        """See Mailbox.put."""
        if delta.finish is not None:
            self.finished = True
        self._delta = delta if self._delta is None else merge(self._delta, delta)
        self._wake()

    def take_nowait(self) -> Delta | None:
        """See Mailbox.take_nowait."""
        delta, self._delta = self._delta, None
        if delta is None and self._error is not None:
            raise self._error
        return delta

    def arrival(self) -> asyncio.Future[None]:
        """See Mailbox.arrival."""
        return self._next()


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
