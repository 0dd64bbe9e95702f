"""Plots as functions of recorded data. Drawn without pyplot: no global state, the same picture in a notebook, a test and a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqlab.record.plot import Plot, subplots

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

SMOOTH = 5
"""Readings in the moving average that is drawn over the single ones."""


def plot_throughput(frame: pandas.DataFrame, title: str) -> Plot:
    """Tokens per second above, requests and KV cache below, over time.

    Args:
        frame: as ``mqlab.lab.sampler.as_frame`` returns it.
        title: written above.
    """
    figure, (upper, lower) = subplots(8.5, 4.6, 2, sharex=True, height_ratios=(3, 2))
    _draw_rates(upper, frame)
    _draw_load(lower, frame)
    figure.suptitle(title, fontsize=11)
    peak = _smooth(frame["generation_tokens_per_s"]).max() if len(frame) else 0.0
    return Plot(figure, f"{title}; peak {peak:.0f} new tokens/s")


def _smooth(series: Any) -> Any:
    return series.rolling(SMOOTH, min_periods=1).mean()


def _draw_rates(axes: Axes, frame: pandas.DataFrame) -> None:
    for column, label, colour in (
        ("generation_tokens_per_s", "new tokens", "tab:orange"),
        ("prompt_tokens_per_s", "prompt tokens", "tab:blue"),
    ):
        axes.plot(frame["seconds"], _smooth(frame[column]), color=colour, label=label)
    axes.set_ylabel("tokens/s")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", frameon=False)
    axes.grid(alpha=0.3)


def _draw_load(axes: Axes, frame: pandas.DataFrame) -> None:
    axes.plot(frame["seconds"], frame["running"], color="tab:green", drawstyle="steps-post", label="running")
    axes.plot(frame["seconds"], frame["waiting"], color="tab:red", drawstyle="steps-post", label="waiting")
    axes.set_ylabel("requests")
    axes.set_xlabel("seconds")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    right = axes.twinx()
    right.fill_between(frame["seconds"], 100 * frame["kv_usage"], color="tab:gray", alpha=0.3, step="post", label="KV cache")
    right.set_ylabel("KV cache, %")
    right.set_ylim(0, 100)
    handles = [*axes.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    axes.legend(handles=handles, loc="upper left", frameon=False, ncols=3)
