"""Labels with a text each, under a title: as words, and as a static table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Rows = Sequence[tuple[str, str]]


def rows_text(title: str, rows: Rows) -> str:
    """A line each, the texts below one another."""
    width = max((len(label) for label, _ in rows), default=0)
    return "\n".join([title, *(f"  {label:{width}}  {text}" for label, text in rows)])


def rows_html(title: str, rows: Rows) -> str:
    """A table in whatever colours surround it."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(label)}</th><td style="text-align:left">{escape(text)}</td></tr>' for label, text in rows
    )
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"
