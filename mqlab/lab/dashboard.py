"""A running engine live in a notebook: its topology with what goes through it, and its figures, a few times a second."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from mqlab.lab.live import Live
from mqlab.lab.sampler import Sampler
from mqlab.lab.view import View
from mqlab.types import ModelInfo, Shape

INTERVAL_S = 0.5


class Dashboard:
    """A view that refreshes itself in the cell that shows it, whatever other cells do, until closed or until the engine is stopped.

    Shown in several cells it stays one dashboard: one thread, one message a refresh. A thread of its own sends them, so they come
    while a cell awaits and while one blocks; where a cell holds the GIL they pause, and then come one at a time again, none late.
    A notebook saved after ``close`` holds the last picture, static. Without ipywidgets, or without a page, all of it is static.

    Args:
        sampler: what reads the engine; shared with plots.
        shape: the topology.
        name: written above.
        interval: seconds between refreshes.
        info: what the engine serves at the moment, written above too.
    """

    def __init__(
        self,
        sampler: Sampler,
        shape: Shape,
        name: str,
        *,
        interval: float = INTERVAL_S,
        info: Callable[[], ModelInfo] | None = None,
    ) -> None:
        self._view = View(sampler, shape, name, info)
        self._live = Live(self._view, interval)
        self._finalizer = weakref.finalize(self, self._live.end)
        self._finalizer.atexit = False  # the page outlives the kernel; there is nobody to draw for

    @property
    def closed(self) -> bool:
        """Whether it will not change any more."""
        return self._live.over

    def close(self) -> None:
        """End the thread and put the last picture, static, where the live one is; idempotent."""
        self._live.close()

    def show_static(self) -> None:
        """Show the picture of this moment, without anything live."""
        from IPython.display import display

        display(self._view.static(), raw=True)

    def __repr__(self) -> str:
        return self._view.text()

    def _repr_html_(self) -> str:
        return self._view.html()

    def _ipython_display_(self) -> None:
        self._live.show()
