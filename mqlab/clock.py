"""The one clock. CLOCK_MONOTONIC is shared by all processes of a Linux host, so stamps of several processes merge without an offset."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from typing import Protocol

_PR_SET_TIMERSLACK = 29


class Clock(Protocol):
    """What the core is given in place of the time module."""

    def now_ns(self) -> int:
        """Nanoseconds on an arbitrary but common origin."""
        ...


class SleepingClock(Clock, Protocol):
    """One that can be waited for."""

    def sleep_until(self, ns: int) -> int:
        """Come back at this time or later; at once where it has passed. Returns the ns by which the sleep was too long."""
        ...


class MonotonicClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC in ns."""
        return time.monotonic_ns()

    def sleep_until(self, ns: int) -> int:
        """Sleep, with the processor free for others. A busy machine wakes a thread late, an idle one after some 10 µs."""
        left = ns - time.monotonic_ns()
        if left <= 0:
            return 0
        _sleep_exactly()
        time.sleep(left * 1e-9)
        return max(0, time.monotonic_ns() - ns)


class ManualClock:
    """A clock that moves only when told to: for tests."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """The time set last, in ns."""
        return self._now_ns

    def advance(self, ns: int) -> None:
        """Move on by ``ns`` nanoseconds."""
        self._now_ns += ns


class VirtualClock(ManualClock):
    """Virtual time: waiting is what moves it, and takes none."""

    def sleep_until(self, ns: int) -> int:
        """Move on to this time, unless it has passed. Never too long."""
        self.advance(max(0, ns - self.now_ns()))
        return 0


class _Thread(threading.local):
    exact = False


_thread = _Thread()


def _sleep_exactly() -> None:
    """Linux lets a thread sleep 50 µs longer than it asks for, unless the thread says otherwise. Where it cannot, it stays so."""
    if _thread.exact or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    _thread.exact = True
