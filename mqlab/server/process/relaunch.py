"""When a front process that died is started again, and when that is given up."""

from __future__ import annotations

import time
from collections.abc import Callable

from mqlab.errors import FrontError

QUICK_S = 30.0
"""A front that lived longer was well: what ended it is not likely to end the next one."""

MOST_QUICK = 5
_FIRST_WAIT_S = 0.1


class Relaunch:
    """The deaths of one front's place. Made when its first process is launched.

    Args:
        role: of its processes.
        now: seconds, on a clock that is never set.
    """

    def __init__(self, role: str, now: Callable[[], float] = time.monotonic) -> None:
        self._role = role
        self._now = now
        self._quick = 0
        self._launched = now()

    def wait_after(self, cause: str) -> float:
        """Its process died. Seconds to wait before the next is launched, longer from one quick death to the next.

        Raises:
            FrontError: it has died too often, too soon after its start.
        """
        self._quick = self._quick + 1 if self._now() - self._launched < QUICK_S else 1
        if self._quick > MOST_QUICK:
            often = f"{self._role} died {self._quick} times, each time within {QUICK_S:g} s of its start"
            raise FrontError(f"{often}; the last time: {cause}. The log above says more; with --api-server-count 1 there is none to die")
        return _FIRST_WAIT_S * 2 ** (self._quick - 1)

    def launched(self) -> None:
        """The next one has been."""
        self._launched = self._now()
