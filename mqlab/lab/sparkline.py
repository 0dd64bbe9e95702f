"""A small curve of the last seconds as SVG path data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(frozen=True)
class Sparkline:
    """Path data of a curve and of the area under it, and the value at its top edge."""

    line: str
    area: str
    top: float


def sparkline(points: Sequence[Point], box: tuple[float, float, float, float], seconds: float) -> Sparkline:
    """The curve through points, the newest at the right edge.

    Args:
        points: (seconds, value at least 0), oldest first.
        box: left, top, width, height.
        seconds: that the width stands for; older points are left out.
    """
    left, upper, width, height = box
    shown = [(at, value) for at, value in points if points[-1][0] - at <= seconds]
    top = max((value for _, value in shown), default=0.0)
    if len(shown) < 2:
        return Sparkline("", "", top)
    spots = [
        (left + width * (1 - (shown[-1][0] - at) / seconds), upper + height * (1 - (value / top if top else 0.0))) for at, value in shown
    ]
    line = "M " + " L ".join(f"{x:.1f} {y:.1f}" for x, y in spots)
    return Sparkline(line, f"{line} V {upper + height:.1f} H {spots[0][0]:.1f} Z", top)
