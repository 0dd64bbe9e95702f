"""The one clock. CLOCK_MONOTONIC is shared by all processes of a Linux host, so stamps of several processes merge without an offset."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the core is given in place of the time module."""

    def now_ns(self) -> int:
        """Nanoseconds on an arbitrary but common origin."""
        ...


class MonotonicClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC in ns."""
        return time.monotonic_ns()


class ManualClock:
    """A clock that moves only when told to: for tests and for virtual time."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """The time set last, in ns."""
        return self._now_ns

    def advance(self, ns: int) -> None:
        """Move on by ``ns`` nanoseconds."""
        self._now_ns += ns
