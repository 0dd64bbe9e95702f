"""Captures as static HTML for a notebook: saved with it, readable in dark and light, and apart from the page around it.

A flame graph stands in a sandboxed frame of its own: no style, id or script of the page reaches it, and none of it reaches the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqlab.record.capture import Capture
    from mqlab.record.difference import CaptureDiff

_WARN = "border-left:3px solid var(--jp-warn-color1, #e69f00);padding-left:8px;margin:4px 0"
_RIGHT, _LEFT = ' style="text-align:right"', ' style="text-align:left"'
_MAX_HEIGHT = 640
_VIEW_BOX = re.compile(r'viewBox="0 0 (\d+) (\d+)"')


def isolated(svg: str, title: str) -> str:
    """An SVG picture with a viewBox in a frame of its own, as wide as the page and at most 640 pixels high, then it scrolls."""
    found = _VIEW_BOX.search(svg)
    width, height = (found[1], found[2]) if found else ("2", "1")
    page = f'<!doctype html><meta charset="utf-8"><style>body{{margin:0;background:#fdfaf4}}svg{{display:block}}</style>{svg}'
    style = f"width:100%;aspect-ratio:{width}/{height};min-height:60px;max-height:{_MAX_HEIGHT}px;border:1px solid #8886;display:block"
    return f'<iframe sandbox="" title="{escape(title)}" style="{style}" srcdoc="{escape(page)}"></iframe>'


def table(head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    """Numbers to the right, and a name in the last column to the left."""
    *numbers, last = head
    top = "".join(f"<th{_RIGHT}>{escape(name)}</th>" for name in numbers) + f"<th{_LEFT}>{escape(last)}</th>"
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(map(_row, rows))}</tbody></table>"


def _row(row: tuple[str, ...]) -> str:
    *numbers, name = row
    cells = "".join(f"<td{_RIGHT}>{escape(number)}</td>" for number in numbers)
    return f"<tr>{cells}<td{_LEFT}><code>{escape(name)}</code></td></tr>"


def capture_html(capture: Capture) -> str:
    """Doubts, CPU by category, the flame graph, and the same as tables."""
    rows = ((f"{share.own:.1%}", f"{share.total:.1%}", share.frame) for share in capture.top(15))
    tables = f"{table(('own', 'total', 'function'), rows)}{_processes(capture)}{_files(capture)}"
    functions = f"<details><summary>{escape(repr(capture))}</summary>{tables}</details>"
    picture = isolated(capture.draw(), "flame graph")
    return f'<figure style="margin:0">{_warnings(capture.problems)}{capture.categories()._repr_html_()}{picture}{functions}</figure>'


def _warnings(sentences: Iterable[str]) -> str:
    return "".join(f'<div style="{_WARN}">{escape(sentence)}</div>' for sentence in sentences)


def _processes(capture: Capture) -> str:
    rows = (
        (
            str(part.stacks.total),
            str(part.errors),
            "?" if part.cpus is None else f"{part.cpus:.2f}",
            f"{part.seconds:.1f} s",
            f"{part.role}, pid {part.pid}, Python {part.python or '?'}",
        )
        for part in capture.parts
    )
    return table(("samples", "failed", "CPUs used (OS)", "time", "process"), rows)


def _files(capture: Capture) -> str:
    return note("For www.speedscope.app and for a browser:", capture.speedscope, capture.svg) if capture.path.is_dir() else ""


def note(text: str, *paths: Path) -> str:
    """Where files are and what they are for."""
    return f"<div>{escape(text)} {', '.join(f'<code>{escape(_shown(path))}</code>' for path in paths)}</div>"


def _shown(path: Path) -> str:
    """A path that names nobody: pages are saved with notebooks, and notebooks are passed on."""
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def difference_html(diff: CaptureDiff) -> str:
    """The differential flame graph, and what changed most as tables."""
    categories = ((f"{c.before:.1%}", f"{c.after:.1%}", _points(c.after - c.before), f"{c.role}: {c.category}") for c in diff.categories())
    rows = ((f"{c.own_before:.1%}", f"{c.own_after:.1%}", _points(c.own), _points(c.total), c.frame) for c in diff.top(20))
    head = ("own before", "own after", "change", "change of total", "function")
    return (
        f'<figure style="margin:0">{_warnings(diff.problems)}{isolated(diff.draw(), "differential flame graph")}'
        f"{table(('before', 'after', 'change', 'CPU by category'), categories)}"
        f"<details><summary>{escape(diff.title)}</summary>{table(head, rows)}</details></figure>"
    )


def _points(change: float) -> str:
    return f"{change * 100:+.1f} pp"
