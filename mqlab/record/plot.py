"""A finished picture, wherever it is looked at. Drawn without pyplot: no global state, the same in a notebook, a test and a script."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 110


class Plot:
    """A finished figure: a static PNG in a notebook, a file on request.

    Attributes:
        figure: matplotlib's figure, for those who want to change it.
    """

    def __init__(self, figure: Figure, summary: str) -> None:
        self.figure = figure
        self.summary = summary

    def save(self, path: str | Path) -> Path:
        """Write it to a file; the suffix names the format."""
        self.figure.savefig(path, dpi=DPI)
        return Path(path)

    def __repr__(self) -> str:
        return f"Plot({self.summary})"

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=DPI)
        return buffer.getvalue()
