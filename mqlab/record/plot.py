"""A finished picture, wherever it is looked at. Drawn without pyplot: no global state, the same in a notebook, a test and a script."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 110

ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
"""The palette of Okabe and Ito, told apart by most eyes."""


def subplots(width: float, height: float, rows: int = 1, columns: int = 1, **settings: Any) -> tuple[Figure, Any]:
    """An empty figure of that many inches and its axes, as ``Figure.subplots(rows, columns, **settings)`` gives them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    return figure, figure.subplots(rows, columns, **settings)


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
