"""Two captures in one flame graph: boxes as wide as in the second, coloured by how their share changed since the first.

After Brendan Gregg's differential flame graphs (2014). Blue is less, orange-red is more; each box also says it in percentage points.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mqlab.record.flame import Box, Paint, Stack, Stacks, draw

SATURATED = 0.10
"""A change of this share or more has the full colour."""

_MORE, _LESS, _SAME = (232, 120, 60), (90, 160, 225), (236, 231, 222)
_VISIBLE = 0.0005


def draw_difference(before: Stacks, after: Stacks, title: str) -> str:
    """A flame graph of ``after`` as static SVG, with the change of each path's share since ``before``. What vanished has no box."""
    old, old_total, new_total = _paths(before), before.total or 1, after.total or 1

    def paint(box: Box) -> Paint:
        change = box.count / new_total - old[box.path] / old_total
        points = f"{change * 100:+.1f} pp" if abs(change) >= _VISIBLE else "same"
        return Paint(_colour(change), f"{points}  {box.frame}", f"{box.frame}: {box.count / new_total:.1%}, {points}")

    return draw(after, title, paint)


def _paths(stacks: Stacks) -> Mapping[Stack, int]:
    """Samples by path, every prefix of every stack counted."""
    paths: Counter[Stack] = Counter()
    for stack, count in stacks.counts.items():
        for depth in range(1, len(stack) + 1):
            paths[stack[:depth]] += count
    return paths


def _colour(change: float) -> str:
    strength = min(abs(change) / SATURATED, 1.0)
    target = _MORE if change > 0 else _LESS
    red, green, blue = (round(base + (end - base) * strength) for base, end in zip(_SAME, target, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"
