"""A mailbox that holds nothing: what arrives is handed on at once, with no task woken for it."""

from __future__ import annotations

from typing import Protocol

from mqlab.client.mailbox import Mailbox
from mqlab.types import Delta


class Sink(Protocol):
    """Takes what one request gains, on the event loop's thread, as it arrives. It must be quick, for all other streams wait."""

    def put(self, delta: Delta) -> None:
        """One delta; nothing comes behind one with ``finish``."""
        ...

    def fail(self, error: Exception) -> None:
        """Nothing comes any more, for this reason."""
        ...


class Owner(Protocol):
    """Whose mailbox it is.

    Attributes:
        sink: where deltas go.
    """

    sink: Sink

    def broke(self, error: Exception) -> None:
        """The sink raised."""
        ...

    def ended(self, delta: Delta) -> None:
        """The last delta, which the sink was not given."""
        ...

    def failed(self, error: Exception) -> None:
        """The stream was ended with an error."""
        ...


class Direct(Mailbox):
    """Hands each delta to its owner's sink; the last one, and an error, to the owner."""

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._owner = owner
        self._put = owner.sink.put

    def put(self, delta: Delta) -> None:
        """See Mailbox.put."""
        if delta.finish is not None:
            self.finished = True
            self._wake()
            self._owner.ended(delta)
            return
        try:
            self._put(delta)
        except Exception as error:
            self._owner.broke(error)

    def fail(self, error: Exception) -> None:
        """See Mailbox.fail."""
        if not self.finished:
            super().fail(error)
            self._owner.failed(error)
