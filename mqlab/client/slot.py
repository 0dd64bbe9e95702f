"""One slot per stream: what has arrived and was not yet read, merged into one delta.

A reader that is slow costs its own unread token ids, never a queue of messages. Source: vLLM V1's one-slot collector (PR 15156).
"""

from __future__ import annotations

import asyncio

import msgspec

from mqlab.client.mailbox import Holding
from mqlab.logprobs import join
from mqlab.types import Delta


class Slot(Holding):
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
        """See Holding.take_nowait."""
        delta, self._delta = self._delta, None
        if delta is None and self._error is not None:
            raise self._error
        return delta

    def arrival(self) -> asyncio.Future[None]:
        """See Holding.arrival."""
        return self._next()


def merge(first: Delta, second: Delta) -> Delta:
    """Two consecutive deltas of one request as one."""
    merged = own(first)
    gather(merged, second)
    return merged


def own(delta: Delta) -> Delta:
    """A copy that may be changed."""
    return msgspec.structs.replace(delta, tokens=[*delta.tokens])


def gather(held: Delta, delta: Delta) -> None:
    """Add the next delta of a request to one that may be changed."""
    held.tokens += delta.tokens
    held.finish, held.stop_reason, held.error = delta.finish, delta.stop_reason, delta.error
    if delta.text is not None:
        held.text = (held.text or "") + delta.text
    held.logprobs = join(held.logprobs, delta.logprobs)
    held.embedding = delta.embedding
    held.stats = delta.stats or held.stats
