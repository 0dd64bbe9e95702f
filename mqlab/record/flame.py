"""Sampled stacks: the folded text that py-spy and flamegraph.pl share, its sums, and a flame graph drawn from it.

The text file is the record; every table and picture is a function of it and can be drawn again. The picture is plain SVG
without scripts, styles or ids, so that it can stand in a notebook next to others and survives being saved with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

from mqlab.record.categories import COLOURS, OTHER, of_frame

WIDTH = 1200
ROW = 17
CHARACTER = 6.6
MIN_WIDTH = 1.0
MAX_DEPTH = 60

Stack = tuple[str, ...]
"""Frames from the outermost to the innermost, as ``function (file)``."""


@dataclass(frozen=True)
class Share:
    """How much of all samples a frame has: ``own`` when it is innermost, ``total`` when it is anywhere; both 0 to 1."""

    frame: str
    own: float
    total: float


@dataclass(frozen=True)
class Box:
    """The end of a path in the picture: samples ``[start, start + count)`` at the path's depth."""

    path: Stack
    start: int
    count: int

    @property
    def frame(self) -> str:
        """The innermost of its path."""
        return self.path[-1]

    @property
    def depth(self) -> int:
        """Frames above it."""
        return len(self.path) - 1


@dataclass(frozen=True)
class Paint:
    """How a box looks: its colour, what stands in it, what hovering shows."""

    fill: str
    label: str
    tip: str


@dataclass(frozen=True)
class Stacks:
    """Samples by stack."""

    counts: Mapping[Stack, int]

    @staticmethod
    def parse(text: str) -> Stacks:
        """Read folded stacks: ``outer;inner count``, one a line.

        Raises:
            ValueError: a line has no count.
        """
        counts: Counter[Stack] = Counter()
        for number, line in enumerate(text.splitlines(), 1):
            frames, _, count = line.rpartition(" ")
            if not frames or not count.isdecimal():
                raise ValueError(f"line {number} of the stacks is {line[:80]!r}, not 'outer;inner count'")
            counts[tuple(frames.split(";"))] += int(count)
        return Stacks(counts)

    @staticmethod
    def load(path: Path) -> Stacks:
        """Read a file of folded stacks."""
        return Stacks.parse(path.read_text(encoding="utf-8"))

    @staticmethod
    def merge(parts: Mapping[str, Stacks]) -> Stacks:
        """All parts in one, each below a frame with its name."""
        return Stacks({(name, *stack): count for name, part in parts.items() for stack, count in part.counts.items()})

    def save(self, path: Path) -> None:
        """Write a file that ``load`` reads."""
        lines = (f"{';'.join(stack)} {count}\n" for stack, count in sorted(self.counts.items()))
        path.write_text("".join(lines), encoding="utf-8")

    @property
    def total(self) -> int:
        """Samples in all."""
        return sum(self.counts.values())

    @property
    def frames(self) -> set[str]:
        """Every frame that was seen."""
        return {frame for stack in self.counts for frame in stack}

    def top(self, n: int = 10) -> list[Share]:
        """The ``n`` frames with the most samples of their own, most first."""
        own = [Share(frame, *share) for frame, share in self.shares().items() if share[0]]
        return sorted(own, key=lambda share: -share.own)[:n]

    def shares(self) -> dict[str, tuple[float, float]]:
        """Own and total share of every frame, as in ``Share``. Recursion counts once."""
        own: Counter[str] = Counter()
        anywhere: Counter[str] = Counter()
        for stack, count in self.counts.items():
            own[stack[-1]] += count
            anywhere.update(dict.fromkeys(stack, count))
        total = self.total or 1
        return {frame: (own[frame] / total, count / total) for frame, count in anywhere.items()}


def lay_out(stacks: Stacks) -> Iterator[Box]:
    """Boxes of a flame graph, equal frames side by side joined; what lies deeper than MAX_DEPTH is left out."""
    yield from _level(sorted(stacks.counts.items()), 0, 0)


def _level(stacks: list[tuple[Stack, int]], depth: int, start: int) -> Iterator[Box]:
    if depth == MAX_DEPTH:
        return
    deeper = (item for item in stacks if len(item[0]) > depth)
    for _, group in groupby(deeper, key=lambda item: item[0][depth]):
        members = list(group)
        count = sum(samples for _, samples in members)
        yield Box(members[0][0][: depth + 1], start, count)
        yield from _level(members, depth + 1, start)
        start += count


def draw(stacks: Stacks, title: str, paint: Callable[[Box], Paint] | None = None) -> str:
    """A flame graph as static SVG, outermost frames on top, frames too narrow to see left out.

    Hovering shows a frame's full name and share. Up to about 150 bytes a frame.

    Args:
        paint: colours and names of the boxes; by default the category of the frame, its name, its share.
    """
    total = stacks.total or 1
    boxes = [box for box in lay_out(stacks) if box.count * WIDTH / total >= MIN_WIDTH]
    height = ROW * (2 + max((box.depth for box in boxes), default=0) + 1)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="100%" role="img" '
        f'font-family="monospace" font-size="11" fill="#1a1a1a">\n<title>{escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#fdfaf4"/>\n<text x="6" y="{ROW - 4}" font-weight="bold">{escape(title)}</text>\n'
    )
    return head + "".join(_draw_boxes(boxes, total, paint or partial(_by_category, total=total))) + "</svg>\n"


def _draw_boxes(boxes: Iterable[Box], total: int, paint: Callable[[Box], Paint]) -> Iterator[str]:
    for box in boxes:
        x, width, y = box.start * WIDTH / total, box.count * WIDTH / total, ROW * (box.depth + 1.5)
        look = paint(box)
        rect = f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width - 0.4, 0.6):.1f}" height="{ROW - 1}" fill="{look.fill}"/>'
        yield f"<g><title>{escape(look.tip)}</title>{rect}{_text(look.label, x, y, width)}</g>\n"


def _text(label: str, x: float, y: float, width: float) -> str:
    room = int((width - 6) / CHARACTER)
    if room < 3:
        return ""
    text = label if len(label) <= room else label[: room - 1] + "…"
    return f'<text x="{x + 3:.1f}" y="{y + 12:.1f}">{escape(text)}</text>'


def _by_category(box: Box, total: int) -> Paint:
    fill = COLOURS[of_frame(box.frame) or OTHER]
    return Paint(fill, box.frame, f"{box.frame}: {box.count} samples, {box.count / total:.1%}")
