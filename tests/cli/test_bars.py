"""Progress bars."""

from __future__ import annotations

import io
import threading

from mqlab.bars import progress_bar, ticking
from mqlab.contract.waiting import until_sync


def test_the_clock_of_a_bar_goes_on_while_an_item_lasts() -> None:
    drawn = io.StringIO()
    with progress_bar("long", total=1, file=drawn) as bar, ticking(bar, 0.01):
        until_sync(lambda: drawn.getvalue().count("long") > 3)
    assert "mqlab-bar" not in {thread.name for thread in threading.enumerate()}


def test_a_bar_that_is_not_shown_does_not_tick() -> None:
    drawn = io.StringIO()
    with progress_bar("long", shown=False, total=1, file=drawn) as bar, ticking(bar, 0.01):
        assert "mqlab-bar" not in {thread.name for thread in threading.enumerate()}
    assert drawn.getvalue() == ""
