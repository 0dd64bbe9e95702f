"""Pictures of a trace: where steps spend their time, latencies, requests over time, lag of the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mqlab.record.columns import by_writer, records
from mqlab.record.facts import BETWEEN, PARTS
from mqlab.record.plot import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, YELLOW, Plot, subplots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mqlab.record.trace import Trace

# Hatches tell them apart without any colour.
PART_COLOURS = dict(zip((*PARTS, *BETWEEN), (ORANGE, YELLOW, BLUE, SKY, GREEN, "#BBBBBB", "#EEEEEE"), strict=True))
PART_HATCHES = dict(zip((*PARTS, *BETWEEN), ("//", "..", "", "\\\\", "xx", "", "oo"), strict=True))

LOG_RATIO = 50
"""Values that span more than this are drawn on a logarithmic scale."""

MAX_REQUESTS = 200
"""Rows of the timeline: the first requests to arrive."""


def plot_steps(trace: Trace) -> Plot:
    """The shares of the engines' time, a bar an engine: the parts of a step and the time between steps."""
    steps = records(trace.steps())
    engines = list(dict.fromkeys((row["run"], row["writer"]) for row in steps))
    figure, axes = subplots(8.5, 1.3 + 0.55 * max(len(engines), 1))
    names = _names(trace, engines)
    left = np.zeros(len(engines))
    for part in (*PARTS, *BETWEEN):
        share = np.array([100 * row["share"] for row in steps if row["part"] == part])
        axes.barh(names, share, left=left, color=PART_COLOURS[part], hatch=PART_HATCHES[part], edgecolor="#444", linewidth=0.5, label=part)
        _write_shares(axes, share, left)
        left = left + share
    axes.set_xlabel("% of the time from the first step to the last")
    axes.invert_yaxis()
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=7, frameon=False, fontsize=9)
    _say_if_empty(axes, len(engines), "no steps recorded")
    largest = max(steps, key=lambda row: row["share"], default=None)
    return Plot(figure, f"shares of steps; most: {largest['part']} {largest['share']:.0%}" if largest else "no steps recorded")


def plot_latency(trace: Trace) -> Plot:
    """Cumulative distributions of TTFT and of the time between deltas (ITL), on logarithmic scales where they span much."""
    requests = trace.tables["requests"].to_pylist()
    figure, (left, right) = subplots(8.5, 3.4, 1, 2)
    ttft = [row["ttft_ms"] for row in requests if row["ttft_ms"] is not None]
    itl = [gap for row in requests for gap in row["itl_ms"] or ()]
    _draw_distribution(left, ttft, "TTFT", BLUE)
    _draw_distribution(right, itl, "ITL", VERMILION)
    left.set_ylabel("share of requests")
    right.set_ylabel("share of deltas")
    told = [f"{name} p50 {np.median(values):.2f} ms" for name, values in (("TTFT", ttft), ("ITL", itl)) if values]
    return Plot(figure, ", ".join(told) or "no finished requests recorded")


def plot_timeline(trace: Trace) -> Plot:
    """Requests in the order of arrival: waiting for the first token (pale, hatched), then decoding, the first token marked."""
    frame = trace.to_pandas("requests").dropna(subset=["writer", "last_s"])
    rows = records(frame.sort_values("arrived_s"))[:MAX_REQUESTS]
    figure, axes = subplots(8.5, 1.4 + 2.8 * min(1.0, max(len(rows), 4) / 40))
    first = [_or(row["first_s"], row["last_s"]) for row in rows]
    arrived, last = [row["arrived_s"] for row in rows], [row["last_s"] for row in rows]
    y = np.arange(len(rows))
    axes.barh(
        y, np.subtract(first, arrived), left=arrived, color=SKY, hatch="///", edgecolor="white", height=0.8, label="to the first token"
    )
    axes.barh(y, np.subtract(last, first), left=first, color=BLUE, height=0.8, label="decoding")
    axes.plot(first, y, linestyle="", marker="|", color="black", label="first token")
    axes.set_xlabel("seconds")
    axes.set_ylabel("request")
    axes.invert_yaxis()
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=9)
    _say_if_empty(axes, len(rows), "no finished requests recorded")
    cut = f", the first {MAX_REQUESTS} of {len(frame)}" if len(frame) > MAX_REQUESTS else ""
    return Plot(figure, f"timeline of {len(rows)} requests{cut}" if rows else "no finished requests recorded")


def plot_loop(trace: Trace) -> Plot:
    """Lag of the event loops over time: how late their ticks came."""
    figure, axes = subplots(8.5, 2.8)
    styles = (("-", BLUE), ("--", VERMILION), (":", GREEN), ("-.", PURPLE))
    worst = 0.0
    loops = list(by_writer(trace.tables["loop"]))
    names = _names(trace, [(run, writer) for run, writer, _ in loops])
    for index, (name, (_, _, ticks)) in enumerate(zip(names, loops, strict=True)):
        style, colour = styles[index % len(styles)]
        lag = ticks["lag_ns"] / 1e6
        axes.plot((ticks["stamp_ns"] - trace.start_ns) / 1e9, lag, linestyle=style, color=colour, linewidth=1, label=name)
        worst = max(worst, float(lag.max()))
    axes.set_xlabel("seconds")
    axes.set_ylabel("lag, ms")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if loops:
        axes.legend(loc="upper right", framealpha=0.9, edgecolor="none", fontsize=9)
    _say_if_empty(axes, len(loops), "no event loop recorded")
    return Plot(figure, f"loop lag; worst {worst:.2f} ms" if loops else "no event loop recorded")


def _names(trace: Trace, writers: Sequence[tuple[str, str]]) -> list[str]:
    """What rows and lines are called: with the run where there is more than one."""
    many = len(trace.meta["runs"]) > 1
    return [f"{writer}\n{run}" if many else writer for run, writer in writers]


def _write_shares(axes: Axes, shares: np.ndarray, left: np.ndarray) -> None:
    """Percents into the bars that have room for them."""
    for row, (share, start) in enumerate(zip(shares, left, strict=True)):
        if share >= 5:
            box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1}
            axes.text(start + share / 2, row, f"{share:.0f} %", ha="center", va="center", fontsize=9, bbox=box)


def _draw_distribution(axes: Axes, values: Sequence[float], name: str, colour: str) -> None:
    axes.set_xlabel(f"{name}, ms")
    axes.grid(alpha=0.3)
    axes.set_ylim(0, 1)
    _say_if_empty(axes, len(values), f"no {name}")
    if not values:
        return
    axes.ecdf(values, color=colour)
    if 0 < LOG_RATIO * min(values) < max(values):
        axes.set_xscale("log")
    for q, style in ((50, ":"), (99, "--")):
        found = float(np.percentile(values, q))
        axes.axvline(found, linestyle=style, color="black", linewidth=1, label=f"p{q} {found:.2f} ms")
    axes.legend(loc="lower right", framealpha=0.9, edgecolor="none", fontsize=9)


def _say_if_empty(axes: Axes, count: int, sentence: str) -> None:
    if not count:
        axes.text(0.5, 0.5, sentence, transform=axes.transAxes, ha="center", va="center")


def _or(value: float, other: float) -> float:
    """The value, another where it is NaN."""
    return other if np.isnan(value) else value
