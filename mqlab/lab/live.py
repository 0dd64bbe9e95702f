"""Keeps a view in a page up to date from a thread, as a widget, and leaves a static picture when it ends."""

from __future__ import annotations

import contextvars
import logging
import threading
import uuid
from typing import TYPE_CHECKING, Any

from mqlab.lab.view import View

if TYPE_CHECKING:
    from ipywidgets import HTML

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

_log = logging.getLogger(__name__)


class Live:
    """A view on show. It begins to refresh when it is first shown, and never again once it has ended.

    Args:
        view: what to draw.
        interval: seconds between refreshes.
    """

    def __init__(self, view: View, interval: float) -> None:
        self._view = view
        self._interval = interval
        self._display_id = uuid.uuid4().hex
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._widget: HTML | None = None
        self._thread: threading.Thread | None = None

    @property
    def over(self) -> bool:
        """Whether it will not change any more."""
        return self._stop.is_set()

    def show(self) -> None:
        """Show it in the running cell; in one more cell, where another already does."""
        from IPython.display import display

        with self._lock:
            if self._thread is None and not self.over and not self._view.over and _is_in_a_page():
                self._begin()
            display(self._bundle(), raw=True, display_id=self._display_id)

    def end(self) -> None:
        """Let the thread leave the static picture and end; waits for nothing, so that the collector may call it."""
        self._stop.set()

    def close(self) -> None:
        """Leave the static picture, as an output of the running cell's message, and wait for the end of the thread; idempotent."""
        self._stop.set()
        self._freeze()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _begin(self) -> None:
        self._widget = _html_widget(self._view.html(live=True))
        if self._widget is not None:
            # In this cell's context: what the thread sends belongs to this cell, not to the one that runs at the time.
            context = contextvars.copy_context()
            self._thread = threading.Thread(target=context.run, args=(self._refresh,), name="mqlab-dashboard", daemon=True)
            self._thread.start()

    def _bundle(self) -> dict[str, Any]:
        if self._widget is None:
            return {**self._view.static()}
        return {**self._view.static(), WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}}

    def _refresh(self) -> None:
        try:
            while not self._stop.wait(self._interval) and not self._view.over:
                with self._lock:
                    if self._widget is not None:
                        self._widget.value = self._view.html(live=True)
            self._freeze()
        except Exception:
            _log.warning("the dashboard failed and stands still", exc_info=True)
        finally:
            self._stop.set()

    def _freeze(self) -> None:
        """Once: replace the widget in every output that shows it."""
        from IPython.display import update_display

        with self._lock:
            if self._widget is not None:
                update_display(self._view.static(), raw=True, display_id=self._display_id)
                for part in (self._widget, self._widget.layout, self._widget.style):
                    part.close()
                self._widget = None


def _is_in_a_page() -> bool:
    from IPython.core.getipython import get_ipython

    return hasattr(get_ipython(), "kernel")


def _html_widget(html: str) -> HTML | None:
    """A widget that holds the picture; None where ipywidgets is missing."""
    try:
        from ipywidgets import HTML
    except ImportError:
        return None
    return HTML(html)
