"""Topologies and figures as SVG: readable, labelled, inside their frame, nothing over anything else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlab.lab.meters import measure
from mqlab.lab.panels import draw_panels, summary
from mqlab.lab.picture import draw
from mqlab.lab.readings import Reading
from mqlab.lab.render import session_html
from mqlab.topologies.aio import AioClient
from mqlab.topologies.inproc import InprocClient
from mqlab.topologies.mq import MqClient
from mqlab.topologies.v1 import V1Client
from mqlab.types import Edge, EngineStats, Shape

RING = Shape(
    "ring",
    (("front", ("event loop",)), ("router", ("loop",)), ("engine", ("engine loop", "input", "output"))),
    (
        Edge("front", "router", "PUSH→PULL", "requests", "input"),
        Edge("router", "engine", "DEALER→ROUTER", "work", "work"),
        Edge("engine", "front", "PUSH→PULL", "one message a step", "output"),
        Edge("front", "engine", "PUB→SUB", "aborts", "aborts"),
    ),
)
SHAPES = [InprocClient.shape, AioClient.shape, MqClient.shape, V1Client.shape, RING]
SECOND = 10**9


def pages(shape: Shape, at_s: int, *, per_s: int, lost: int = 0) -> Mapping[str, Mapping[str, int]]:
    """What a busy run has counted: ``per_s`` messages of 2000 bytes a second on every channel."""
    found: dict[str, dict[str, int]] = {f"{name.split()[0]}-{1000 + index}": {} for index, (name, _) in enumerate(shape.processes)}
    writers = {writer.rpartition("-")[0]: page for writer, page in found.items()}
    for edge in shape.edges:
        sent = at_s * per_s
        writers[edge.source] |= {f"socket.{edge.name}.sent.messages": sent + lost, f"socket.{edge.name}.sent.bytes": 2000 * sent}
        writers[edge.source][f"socket.{edge.name}.sent.eagain"] = sent
        writers[edge.target] |= {f"socket.{edge.name}.received.messages": sent}
    seen = {f"process.{role}.{what}": amount for role in writers for what, amount in (("cpu_ns", at_s * 970_000_000), ("rss_bytes", 10**9))}
    steps = {"step.count": 80 * at_s} | {f"step.{part}_ns": at_s * 10**8 for part in ("schedule", "launch", "device", "sample", "output")}
    loop = {"loop.ticks": at_s, "loop.lag_ns": at_s * 12345678, "loop.lag_max_ns": SECOND, "loop.busy_ns": at_s, "loop.wall_ns": 2 * at_s}
    request = {"request.finished": 123_456, "request.ttft_ns": 999 * at_s, "request.ttft_count": at_s}
    return found | {"observer-1": seen | steps | loop | request}


def busy(shape: Shape, *, per_s: int = 12_345, lost: int = 0, running: int = 123) -> tuple[Reading, Reading]:
    def at(seconds: int) -> Reading:
        stats = EngineStats(
            stamp_ns=seconds * SECOND,
            running=running,
            waiting=running,
            blocks_used=99_999,
            blocks_total=100_000,
            generation_tokens=seconds * 123_456,
            preemptions=12_345,
            prefix_queries=200_000,
            prefix_hits=199_800,
            drafted=1000,
            accepted=999,
        )
        return Reading(stats, pages(shape, seconds, per_s=per_s, lost=lost))

    return at(10), at(11)


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}text")]


def test_processes_and_channels_are_labelled() -> None:
    shown = texts(draw(MqClient.shape))
    assert {"front", "engine", "⟳ event loop", "⟳ engine loop"} <= set(shown)
    channels = [text.split() for text in shown if "→" in text]
    assert [words[:2] for words in channels] == [
        ["input", "PUSH→PULL"],
        ["output", "PUSH→PULL"],
        ["health", "PUSH→PULL"],
        ["data", "DEALER→ROUTER"],
    ]
    assert "one process, no sockets" in texts(draw(InprocClient.shape))


def test_live_traffic_is_written_on_its_channel() -> None:
    shown = texts(draw(V1Client.shape, measure(*busy(V1Client.shape, lost=3), V1Client.shape)))
    assert shown.count("12.3 k msg/s · 24.7 MB/s · 12.3 k EAGAIN/s") == 2
    assert shown.count("queue 3") == 2
    assert {"pid 1000", "pid 1001", "CPU 97 % · 1.00 GB"} <= set(shown)


def test_an_idle_channel_says_so_and_a_loss_is_marked() -> None:
    meters = measure(*busy(V1Client.shape, per_s=0, lost=3, running=0), V1Client.shape)
    svg = draw(V1Client.shape, meters)
    assert texts(svg).count("3 undelivered") == texts(svg).count("idle · 3 sent so far") == 2
    marks = re.compile("<g transform=")
    assert len(marks.findall(svg)) == 2
    assert not marks.search(draw(V1Client.shape, measure(*busy(V1Client.shape), V1Client.shape)))


def test_a_line_grows_with_the_logarithm_of_its_rate() -> None:
    def width(per_s: int) -> float:
        svg = draw(V1Client.shape, measure(*busy(V1Client.shape, per_s=per_s), V1Client.shape))
        return float(re.findall(r'stroke-width="([\d.]+)" stroke-linejoin', svg)[0])

    widths = [width(per_s) for per_s in (0, 9, 99, 999, 99_999)]
    assert widths == pytest.approx([1.2, 2.4, 3.6, 4.8, 7.2])


def test_under_one_process_figures_are_of_that_process_whatever_it_is_called() -> None:
    meters = measure(*busy(AioClient.shape), AioClient.shape)
    assert "pid 1000" in texts(draw(AioClient.shape, meters))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("live", [False, True])
def test_a_picture_stands_alone(shape: Shape, live: bool) -> None:
    svg = draw(shape, measure(*busy(shape), shape) if live else None)
    check_stands_alone(svg)


def test_panels_stand_alone() -> None:
    check_stands_alone(draw_panels(measure(*busy(MqClient.shape), MqClient.shape), [(0.0, 1.0), (1.0, 3.0)]))
    check_stands_alone(draw_panels(measure(Reading(EngineStats()), Reading(EngineStats()), MqClient.shape), []))


def check_stands_alone(svg: str) -> None:
    """One image to assistive technology, described in words; no script and no id that could clash with the page's."""
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    title, about = root[0], root[1]
    assert title.tag.endswith("}title")
    assert title.text
    assert about.tag.endswith("}desc")
    assert about.text
    assert not [element for element in root.iter() if "id" in element.attrib or element.tag.endswith(("script", "style", "foreignObject"))]


def test_figures_are_in_words_too() -> None:
    words = dict(summary(measure(*busy(MqClient.shape), MqClient.shape)))
    assert words["new tokens"] == "123 k/s"
    assert words["requests"] == "123 running, 123 waiting, 123 k finished, 0 failed"
    assert words["prefix cache"] == "had 100 % of 200 k prompt tokens"
    assert words["speculation"] == "100 % of 1.00 k guessed tokens kept"
    assert words["CPU of engine"] == "97 % · 1.00 GB"
    assert words["engine step"] == "schedule 10 %, launch 10 %, device 10 %, sample 10 %, output 10 %, rest 50 %"


def test_what_the_engine_does_not_do_is_not_shown() -> None:
    idle = measure(Reading(EngineStats()), Reading(EngineStats()), MqClient.shape)
    assert not {"prefix cache", "speculation"} & set(dict(summary(idle)))
    shown = texts(draw_panels(measure(*busy(MqClient.shape), MqClient.shape), []))
    assert {"prefix hits 100 %", "guesses kept 100 %"} <= set(shown)
    assert not [text for text in texts(draw_panels(idle, [])) if "hits" in text or "guesses" in text]


@dataclass(frozen=True)
class Rectangle:
    """What a text takes up, as sans-serif fonts go."""

    text: str
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Rectangle) -> bool:
        return self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom


def rectangles(svg: str) -> tuple[list[Rectangle], float, float]:
    """All texts of a picture where they stand; its width and height."""
    root = ElementTree.fromstring(svg)
    found: list[Rectangle] = []
    _collect(root, (0.0, 0.0), {"font-size": "12", "text-anchor": "start"}, found)
    *_, width, height = map(float, root.attrib["viewBox"].split())
    return found, width, height


def _collect(element: ElementTree.Element, origin: tuple[float, float], style: dict[str, str], found: list[Rectangle]) -> None:
    style = style | {key: element.attrib[key] for key in ("font-size", "text-anchor") if key in element.attrib}
    if moved := re.match(r"translate\(([\d.-]+) ([\d.-]+)\)", element.get("transform", "")):
        origin = origin[0] + float(moved[1]), origin[1] + float(moved[2])
    if element.tag.endswith("}text"):
        found.append(_rectangle(element, origin, style))
    for child in element:
        _collect(child, origin, style, found)


def _rectangle(element: ElementTree.Element, origin: tuple[float, float], style: dict[str, str]) -> Rectangle:
    text, size = "".join(element.itertext()), float(style["font-size"])
    width = 0.55 * size * len(text)
    x, y = origin[0] + float(element.attrib["x"]), origin[1] + float(element.attrib["y"])
    left = {"start": x, "middle": x - width / 2, "end": x - width}[style["text-anchor"]]
    return Rectangle(text, left, y - 0.75 * size, left + width, y + 0.2 * size)


def check_layout(svg: str) -> None:
    found, width, height = rectangles(svg)
    assert found
    for one in found:
        assert one.left >= 0
        assert one.right <= width, one
        assert one.top >= 0
        assert one.bottom <= height, one
    for one, other in combinations(found, 2):
        assert not one.meets(other), (one, other)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize(("per_s", "lost", "running"), [(12_345, 1234, 1), (0, 12, 0)])
def test_no_text_stands_on_another_or_outside(shape: Shape, per_s: int, lost: int, running: int) -> None:
    meters = measure(*busy(shape, per_s=per_s, lost=lost, running=running), shape)
    check_layout(draw(shape, meters))
    check_layout(draw_panels(meters, [(0.0, 1.0), (1.0, 3.0)]))


@st.composite
def shapes(draw_from: st.DrawFn) -> Shape:
    names = [f"role{index}" for index in range(draw_from(st.integers(2, 5)))]
    ends = st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True)
    routes = draw_from(st.lists(ends, max_size=8))
    edges = tuple(Edge(source, target, "PUSH→PULL", "things", f"edge{index}") for index, (source, target) in enumerate(routes))
    return Shape("any", tuple((name, ("loop",)) for name in names), edges)


@settings(max_examples=30)
@given(shapes())
def test_any_layout_is_drawn_inside_its_frame(shape: Shape) -> None:
    svg = draw(shape, measure(*busy(shape), shape))
    found, width, height = rectangles(svg)
    assert sum("PUSH→PULL" in one.text for one in found) == len(shape.edges)
    assert all(one.top >= 0 and one.bottom <= height for one in found)
    ends = [float(x) for path in re.findall(r'<path d="([^"]+)" fill="none"', svg) for x in re.findall(r"[MH] ([\d.-]+)", path)]
    assert all(0 <= x <= width for x in ends)


def test_names_are_escaped() -> None:
    odd = Shape("<odd>", (("a & b", ("<loop>",)), ("c", ())), (Edge("a & b", "c", "<→>", '"things"', "<in>"),))
    assert "<in> <→>" in {text.split("  ")[0] for text in texts(draw(odd))}
    assert "<odd>" not in session_html("lab", "ready", "", odd, [("a", "<b>")])
