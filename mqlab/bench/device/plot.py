"""The picture of a device's benchmark."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from mqlab.bench.device.goals import DECODE_SHARE, PREFILL_SHARE
from mqlab.bench.device.jobs import WANTED_DECODE, WANTED_PREFILL
from mqlab.model.measure.rows import EngineRate, Timed
from mqlab.record.plot import BLUE, ORANGE, VERMILION, Plot, subplots

if TYPE_CHECKING:
    from mqlab.bench.device.result import DeviceResult

_BAR_INCHES = 0.21
_GOALS = {("paged_decode", WANTED_DECODE): DECODE_SHARE, ("prefill_attention", WANTED_PREFILL): PREFILL_SHARE}


def plot(result: DeviceResult) -> Plot:
    """Left, what part of its ceiling each kernel reaches, with a mark at what is wanted; right, each layout's tokens a second."""
    timed = [row for row in result.of(Timed) if result.share(row) is not None]
    rates = result.of(EngineRate)
    height = 1.2 + _BAR_INCHES * max(len(timed), len(rates), 6)
    figure, (left, right) = subplots(12.0, height, 1, 2, width_ratios=(3, 2))
    _kernels(left, result, timed)
    _engines(right, rates)
    summary = f"{result.facts.name}: {len(timed)} kernels and sizes, {len(rates)} engines"
    figure.suptitle(summary if result.is_real else f"{summary}; times mean nothing", fontsize=10, x=0.01, ha="left")
    return Plot(figure, summary)


def _kernels(axes: Any, result: DeviceResult, timed: list[Timed]) -> None:
    rows = timed[::-1]
    shares = [result.share(row) or 0.0 for row in rows]
    bars = axes.barh([f"{row.kernel}, {row.case}" for row in rows], shares, color=BLUE)
    axes.bar_label(bars, [f" {share:.0%}" for share in shares], fontsize=7)
    for place, row in enumerate(rows):
        wanted = _GOALS.get((row.kernel, row.case))
        if wanted is not None:
            axes.plot([wanted] * 2, [place - 0.45, place + 0.45], color=VERMILION, linewidth=2)
    axes.tick_params(labelsize=7)
    axes.set_xlabel("of the ceiling that holds it up; the mark is what is wanted")
    axes.margins(x=0.12, y=0.01)


def _engines(axes: Any, rates: list[EngineRate]) -> None:
    rows = rates[::-1]
    bars = axes.barh([f"{row.model}, {row.layout}" for row in rows], [median(row.tokens_per_s) for row in rows], color=ORANGE)
    axes.bar_label(bars, [f" {median(row.tokens_per_s):,.0f}" for row in rows], fontsize=7)
    axes.tick_params(labelsize=7)
    axes.set_xlabel("new tokens/s")
    axes.margins(x=0.18, y=0.01)
