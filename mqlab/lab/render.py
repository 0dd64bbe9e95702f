"""Static HTML of notebook objects: templates in, text out. Colours come from Jupyter's theme, so light and dark both read well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2

from mqlab.types import Edge, Shape

BOX_WIDTH = 150
GAP = 330
ROW = 34
MARGIN = 10
TIP = 6


@dataclass(frozen=True)
class ProcessBox:
    """A process in the picture."""

    name: str
    threads: tuple[str, ...]
    x: int
    width: int = BOX_WIDTH


@dataclass(frozen=True)
class Arrow:
    """A channel in the picture: a line from ``start`` to ``end`` at height ``y``."""

    start: int
    end: int
    y: int
    channel: str
    carries: str

    @property
    def middle(self) -> float:
        """Where its label is centred."""
        return (self.start + self.end) / 2

    @property
    def back(self) -> int:
        """From the tip to the barbs, along the line."""
        return -TIP if self.end > self.start else TIP


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(loader=jinja2.PackageLoader("mqlab.lab"), autoescape=True, undefined=jinja2.StrictUndefined)


def render(template: str, facts: Mapping[str, Any]) -> str:
    """A template of this package with facts filled in, escaped."""
    return _templates().get_template(template).render(facts)


def draw_shape(shape: Shape) -> str:
    """Processes as boxes from left to right, channels as arrows between them, as inline SVG."""
    boxes = [ProcessBox(name, threads, MARGIN + index * (BOX_WIDTH + GAP)) for index, (name, threads) in enumerate(shape.processes)]
    by_name = {box.name: box for box in boxes}
    arrows = [_arrow(edge, by_name, row) for row, edge in enumerate(shape.edges)]
    threads = max((len(box.threads) for box in boxes), default=0)
    height = 2 * MARGIN + max(30 + ROW * len(arrows), 44 + 18 * threads)
    width = 2 * MARGIN + len(boxes) * (BOX_WIDTH + GAP) - GAP
    return render("shape.svg.j2", {"name": shape.name, "boxes": boxes, "arrows": arrows, "width": width, "height": height})


def _arrow(edge: Edge, boxes: Mapping[str, ProcessBox], row: int) -> Arrow:
    source, target = boxes[edge.source], boxes[edge.target]
    rightwards = source.x < target.x
    start = source.x + (source.width if rightwards else 0)
    end = target.x + (0 if rightwards else target.width)
    return Arrow(start, end, MARGIN + 36 + ROW * row, edge.channel, edge.carries)


def session_html(name: str, state: str, detail: str, shape: Shape, facts: list[tuple[str, str]]) -> str:
    """The card of a session."""
    light = {"ready": "var(--jp-success-color1, #388e3c)", "stopped": "var(--jp-content-font-color3, #888)"}
    return render(
        "session.html.j2",
        {
            "name": name,
            "state": state,
            "detail": detail,
            "light": light.get(state, "var(--jp-error-color1, #d32f2f)"),
            "picture": draw_shape(shape),
            "facts": facts,
        },
    )
