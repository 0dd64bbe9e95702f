"""Pictures of a trace show its numbers; of an empty one they say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import FRONT, at, record, write_counters, write_requests

from mqlab.lab.traceplots import MAX_REQUESTS, plot_latency, plot_loop, plot_steps, plot_timeline
from mqlab.record.plot import Plot
from mqlab.record.trace import Trace

PLOTS = (plot_steps, plot_latency, plot_timeline, plot_loop)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace.of(record(tmp_path / "run"))


def widths(axes: Any) -> dict[str, float]:
    return {bars.get_label(): sum(bar.get_width() for bar in bars) for bars in axes.containers}


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_is_a_picture(plot: Callable[[Trace], Plot], trace: Trace, tmp_path: Path) -> None:
    assert plot(trace)._repr_png_().startswith(b"\x89PNG")
    assert plot(trace).save(tmp_path / "plot.svg").read_text().count("<svg")


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_of_nothing_says_so(plot: Callable[[Trace], Plot], tmp_path: Path) -> None:
    write_counters(tmp_path, FRONT, {"loop.ticks": 0})
    empty = plot(Trace.of(tmp_path))
    assert "recorded" in repr(empty)
    words = [text.get_text() for axes in empty.figure.axes for text in axes.texts]
    assert any(word.startswith("no ") for word in words)
    assert empty._repr_png_()


def test_bars_are_the_shares(trace: Trace) -> None:
    plot = plot_steps(trace)
    (axes,) = plot.figure.axes
    assert widths(axes)["device"] == pytest.approx(56.25)
    assert sum(widths(axes).values()) == pytest.approx(100)
    assert "device 56%" in repr(plot)
    hatches = {bars.patches[0].get_hatch() or bars.patches[0].get_facecolor() for bars in axes.containers}
    assert len(hatches) == 7, "parts are told apart without colour"


def test_curves_hold_every_request(trace: Trace) -> None:
    plot = plot_latency(trace)
    left, right = plot.figure.axes
    assert left.lines[0].get_xdata()[-1] == pytest.approx(18.5)
    assert sorted(set(np.round(right.lines[0].get_xdata(), 6))) == pytest.approx([11, 29])
    assert repr(plot) == "Plot(TTFT p50 18.50 ms, ITL p50 20.00 ms)"


def test_timeline_marks_the_first_token(trace: Trace) -> None:
    (axes,) = plot_timeline(trace).figure.axes
    assert widths(axes) == pytest.approx({"to the first token": 0.0185, "decoding": 0.04})
    assert axes.lines[0].get_xdata().tolist() == pytest.approx([0.0185])


def test_timeline_survives_requests_without_tokens_and_many(tmp_path: Path) -> None:
    rows = [{"id": str(n), "arrived_ns": at(n), "last_ns": at(n + 5), "finish": "abort"} for n in range(MAX_REQUESTS + 1)]
    write_requests(tmp_path, FRONT, [*rows, {"id": "refused", "arrived_ns": at(0), "finish": "error"}])
    plot = plot_timeline(Trace.of(tmp_path))
    assert repr(plot) == f"Plot(timeline of {MAX_REQUESTS} requests, the first {MAX_REQUESTS} of {MAX_REQUESTS + 1})"
    assert widths(plot.figure.axes[0])["decoding"] == 0


def test_lag_is_drawn_over_time(trace: Trace) -> None:
    plot = plot_loop(trace)
    (axes,) = plot.figure.axes
    assert axes.lines[0].get_xdata().tolist() == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([1, 2, 3, 4, 5])
    assert repr(plot) == "Plot(loop lag; worst 5.00 ms)"


def test_runs_are_told_apart(tmp_path: Path) -> None:
    merged = Trace.merge(Trace.of(record(tmp_path / name)) for name in ("one", "two"))
    (axes,) = plot_steps(merged).figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["engine-12\none", "engine-12\ntwo"]
    (axes,) = plot_loop(merged).figure.axes
    assert [line.get_label() for line in axes.lines] == ["front-11\none", "front-11\ntwo"]
