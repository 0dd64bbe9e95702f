"""A topology as a picture: processes as boxes, channels as arrows between them, and what goes through them now."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mqlab.lab.figures import data, number, percent
from mqlab.lab.meters import Meters, ProcessMeter, Traffic
from mqlab.lab.templating import render
from mqlab.types import Edge, Shape

MARGIN = 8
SIDE = 1
HEAD = 40
"""From the top of a box to its first channel."""

LINE = 17
LANE_STEP = 14
"""How far a lane that runs around another one keeps from it."""


@dataclass(frozen=True)
class Box:
    """A process: where it is, the lines of text under its name, and the CPUs that it uses, None where unknown."""

    name: str
    x: float
    width: float
    figures: tuple[str, ...]
    cpus: float | None
    threads: tuple[str, ...]

    @property
    def middle(self) -> float:
        """Where its text is centred."""
        return self.x + self.width / 2

    @property
    def lines(self) -> int:
        """Of text."""
        return 1 + len(self.figures) + (self.cpus is not None) + len(self.threads)


@dataclass(frozen=True)
class Arrow:
    """A channel: path data of its line and of its tip, and its labels.

    Attributes:
        left, right: between which its labels stand. y: height of its line there.
        queue: the label at the receiving end, at height ``queue_y``.
        receiver: the side of the receiving end, for ``text-anchor``: "start" is left.
    """

    path: str
    tip: str
    left: float
    right: float
    y: float
    queue_y: float
    width: float
    active: bool
    lost: bool
    edge: Edge
    traffic: str
    queue: str
    receiver: str


@dataclass(frozen=True)
class _Layout:
    """Boxes in a row; channels between neighbours in the gap between them, others in lanes below.

    Attributes:
        row: height of a channel with its labels.
        queue: from the line of a channel down to the label of its queue.
        wordy: there is room to say what a channel carries.
    """

    box_width: float
    gap: float
    row: float
    queue: float
    wordy: bool

    @staticmethod
    def of(processes: int) -> _Layout:
        return _Layout(196, 466, 54, -8, wordy=True) if processes <= 2 else _Layout(142, 216, 66, 32, wordy=False)


def draw(shape: Shape, meters: Meters | None = None) -> str:
    """Inline SVG of a topology, without scripts and ids, in the page's own colours.

    Args:
        shape: processes from left to right.
        meters: draws traffic, pids and CPU as well.
    """
    layout = _Layout.of(len(shape.processes))
    boxes = _boxes(shape, layout, meters)
    rows = Counter(_gap_of(edge, boxes) for edge in shape.edges)
    lanes = rows.pop(None, 0)
    bottom = _bottom(boxes.values(), max(rows.values(), default=0), layout)
    facts = {
        "shape": shape,
        "boxes": boxes.values(),
        "arrows": _arrows(shape, boxes, layout, meters, bottom),
        "width": 2 * SIDE + len(boxes) * (layout.box_width + layout.gap) - layout.gap,
        "height": bottom + MARGIN + layout.row * lanes + (0 if shape.edges else LINE),
        "bottom": bottom,
        "wordy": layout.wordy,
        "about": describe(shape, meters),
    }
    return render("picture.svg.j2", {**facts, "margin": MARGIN, "line": LINE})


def _bottom(boxes: Collection[Box], rows: int, layout: _Layout) -> float:
    return MARGIN + max(HEAD + layout.row * rows, 26 + LINE * max((box.lines for box in boxes), default=0))


def describe(shape: Shape, meters: Meters | None = None) -> str:
    """The picture in words, for those who cannot see it."""
    boxes = _boxes(shape, _Layout.of(len(shape.processes)), meters)
    processes = "; ".join(", ".join((box.name, *box.figures, *box.threads)) for box in boxes.values())
    edges = "; ".join(", ".join(filter(None, (_route(edge), *_labels(_traffic_of(edge, meters))))) for edge in shape.edges)
    return f"Processes: {processes}." + (f" Channels: {edges}." if edges else "")


def _route(edge: Edge) -> str:
    return f"{edge.source} to {edge.target} by {edge.channel} ({edge.carries})"


def _boxes(shape: Shape, layout: _Layout, meters: Meters | None) -> dict[str, Box]:
    boxes = {}
    for index, (name, threads) in enumerate(shape.processes):
        seen = _process_of(name, shape, meters)
        marks = tuple(f"⟳ {thread}" for thread in threads)
        x = SIDE + index * (layout.box_width + layout.gap)
        boxes[name] = Box(name, x, layout.box_width, _figures(seen), seen.cpus if seen else None, marks)
    return boxes


def _process_of(name: str, shape: Shape, meters: Meters | None) -> ProcessMeter | None:
    processes = meters.processes if meters else ()
    if len(shape.processes) == 1:  # whatever roles it has
        return processes[0] if processes else None
    return next((process for process in processes if name in process.roles), None)


def _figures(process: ProcessMeter | None) -> tuple[str, ...]:
    if process is None:
        return ()
    seen = [f"CPU {percent(process.cpus)}"] if process.cpus is not None else []
    seen += [data(process.rss_bytes)] if process.rss_bytes is not None else []
    return tuple(filter(None, (f"pid {process.pid}", " · ".join(seen))))


def _gap_of(edge: Edge, boxes: Mapping[str, Box]) -> float | None:
    """The left end of the gap that it crosses; None where it passes other processes."""
    order = list(boxes)
    source, target = order.index(edge.source), order.index(edge.target)
    return boxes[order[min(source, target)]].x if abs(source - target) == 1 else None


def _arrows(shape: Shape, boxes: Mapping[str, Box], layout: _Layout, meters: Meters | None, bottom: float) -> list[Arrow]:
    taken: defaultdict[float | None, int] = defaultdict(int)
    arrows = []
    for edge in shape.edges:
        gap = _gap_of(edge, boxes)
        ends, row, traffic = (boxes[edge.source], boxes[edge.target]), taken[gap], _traffic_of(edge, meters)
        line = _lane(*ends, bottom, row, layout, traffic) if gap is None else _straight(*ends, row, layout, traffic)
        arrows.append(_arrow(edge, traffic, line, layout))
        taken[gap] += 1
    return arrows


@dataclass(frozen=True)
class _Line:
    """Where an arrow runs: path data, and the two ends and the height of the part that is labelled."""

    path: str
    tip: str
    start: float
    end: float
    y: float
    queue_y: float


def _straight(source: Box, target: Box, row: int, layout: _Layout, traffic: Traffic | None) -> _Line:
    width = _stroke(traffic)
    ahead = 1 if source.x < target.x else -1
    start, end = (source.x + source.width, target.x) if ahead > 0 else (source.x, target.x + target.width)
    y = MARGIN + HEAD + layout.row * row
    reach = ahead * (6 + width)
    tip = f"M {end} {y} l {-reach:.1f} {-(4 + width / 2):.1f} v {8 + width:.1f} Z"
    return _Line(f"M {start} {y} H {end - reach:.1f}", tip, start, end, y, y + layout.queue)


def _lane(source: Box, target: Box, bottom: float, row: int, layout: _Layout, traffic: Traffic | None) -> _Line:
    """Out of the source's bottom, along below the boxes, into the target's bottom."""
    width = _stroke(traffic)
    outwards = LANE_STEP * row * (1 if source.x < target.x else -1)
    start, end = source.middle - outwards, target.middle + outwards
    y = bottom + layout.row * row + 30
    reach = 6 + width
    tip = f"M {end} {bottom} l {-(4 + width / 2):.1f} {reach:.1f} h {8 + width:.1f} Z"
    return _Line(f"M {start} {bottom} V {y} H {end} V {bottom + reach:.1f}", tip, start, end, y, y - 8)


def _arrow(edge: Edge, traffic: Traffic | None, line: _Line, layout: _Layout) -> Arrow:
    flow, queue = _labels(traffic, layout.wordy)
    return Arrow(
        path=line.path,
        tip=line.tip,
        left=min(line.start, line.end),
        right=max(line.start, line.end),
        y=line.y,
        queue_y=line.queue_y,
        width=_stroke(traffic),
        active=traffic is None or traffic.sent.messages_per_s > 0,
        lost=traffic is not None and traffic.lost > 0,
        edge=edge,
        traffic=flow,
        queue=queue,
        receiver="end" if line.start < line.end else "start",
    )


def _traffic_of(edge: Edge, meters: Meters | None) -> Traffic | None:
    found = (t for t in (meters.traffic if meters else ()) if (t.name, t.source, t.target) == (edge.name, edge.source, edge.target))
    return next(found, None)


def _stroke(traffic: Traffic | None) -> float:
    """Width of a line: grows with the logarithm of its messages per second."""
    return 1.2 + 1.2 * math.log10(1 + traffic.sent.messages_per_s) if traffic else 1.2


def _labels(traffic: Traffic | None, wordy: bool = True) -> tuple[str, str]:
    """What goes through a channel, and what waits in it or was lost."""
    if traffic is None:
        return "", ""
    sent = traffic.sent
    flow = [f"{number(sent.messages_per_s)} msg/s", f"{data(sent.bytes_per_s)}/s"] if sent.messages_per_s else ["idle"]
    flow += [] if sent.messages_per_s else [f"{number(sent.messages)} sent so far"]
    # A receiver's EAGAIN says that it polled; a sender's, that there was no room.
    flow += [f"{number(sent.eagain_per_s)} EAGAIN/s"] if sent.eagain_per_s and wordy else []
    queue = f"{number(traffic.lost)} undelivered" if traffic.lost else f"queue {number(traffic.depth)}" if traffic.depth else ""
    return " · ".join(flow), queue
