"""A front process that dies is started again, sooner or later, and not for ever."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mqlab.errors import FrontError
from mqlab.server.process.relaunch import MOST_QUICK, QUICK_S, Relaunch


class Clock:
    """Stands still unless it is moved."""

    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_waits_grow_until_it_is_given_up_with_the_last_cause() -> None:
    relaunch = Relaunch("front-1", Clock())
    waits = [relaunch.wait_after("it fell") for _ in range(MOST_QUICK)]
    assert all(later > earlier > 0 for earlier, later in pairwise(waits))
    with pytest.raises(FrontError, match=f"front-1 died {MOST_QUICK + 1} times.*it fell again"):
        relaunch.wait_after("it fell again")


def test_one_that_lived_for_long_begins_anew() -> None:
    clock = Clock()
    relaunch = Relaunch("front-1", clock)
    first = relaunch.wait_after("it fell")
    for _ in range(3 * MOST_QUICK):
        relaunch.launched()
        clock.seconds += QUICK_S
        assert relaunch.wait_after("it fell") == first
