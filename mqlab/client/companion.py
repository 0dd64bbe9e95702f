"""What may live beside a client."""

from __future__ import annotations

from typing import Protocol


class Companion(Protocol):
    """What lives beside a client on its event loop: a probe. It must not fail, nor hold the client."""

    def start(self) -> None:
        """The client starts."""
        ...

    def stop(self) -> None:
        """The client is closed, or failed to start; may come without ``start``."""
        ...
