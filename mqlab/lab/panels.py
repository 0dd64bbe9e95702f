"""The figures of a dashboard as one picture: two rows of four panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mqlab.bench.reuse import Reuse
from mqlab.lab.figures import data, duration, number, percent
from mqlab.lab.meters import Mean, Meters
from mqlab.lab.sparkline import Point, sparkline
from mqlab.lab.templating import render

WIDTH = 860
COLUMN = 206
GAP = 12
HEIGHT = 112
SECONDS = 60
"""What the curve goes back."""

_PART_COLOURS = {"schedule": "orange", "launch": "pink", "device": "main", "sample": "green", "output": "red"}
_ROWS = 4
"""Lines that a panel has room for."""


@dataclass(frozen=True)
class Bar:
    """A gauge: its label, what it says, and how full it is, 0 to 1."""

    label: str
    text: str
    share: float


@dataclass(frozen=True)
class Part:
    """A piece of the step bar: where it begins and ends, 0 to 1."""

    label: str
    text: str
    colour: str
    start: float
    end: float


def draw_panels(meters: Meters, rates: Sequence[Point]) -> str:
    """Inline SVG of tokens per second, requests, KV cache, latencies, event loop, CPU and step parts.

    Args:
        rates: (seconds, new tokens per second) of the last minute, oldest first.
    """
    reuse = Reuse.of(meters.stats)
    chart = (200.0, 26.0, 2 * COLUMN + GAP - 214.0, 58.0)
    facts = {
        "meters": meters,
        "spark": sparkline(rates, chart, SECONDS),
        "chart": chart,
        "requests": _requests(meters),
        "kv": Bar("blocks", f"{meters.stats.blocks_used} of {meters.stats.blocks_total} blocks", meters.stats.kv_usage),
        "cached": reuse.cached_share,
        "kept": reuse.kept_share,
        "latency": [(name, *_mean(mean)) for name, mean in (("TTFT", meters.ttft), ("ITL", meters.itl), ("queue", meters.queue))],
        "event_loop": _loop(meters),
        "cpu": _cpu(meters),
        "parts": _parts(meters),
        "about": "; ".join(f"{label}: {text}" for label, text in summary(meters)),
    }
    sizes = {"width": WIDTH, "column_width": COLUMN, "gap": GAP, "panel_height": HEIGHT, "seconds": SECONDS}
    return render("panels.svg.j2", {**facts, **sizes, "number": number, "percent": percent})


def summary(meters: Meters) -> list[tuple[str, str]]:
    """The same in words: a label and a text each."""
    stats = meters.stats
    rows = [
        ("new tokens", f"{number(meters.generation_per_s)}/s"),
        ("prompt tokens", f"{number(meters.prompt_per_s)}/s"),
        ("requests", ", ".join(f"{value} {label}" for label, value in _requests(meters))),
        ("KV cache", f"{percent(stats.kv_usage)}, {stats.blocks_used} of {stats.blocks_total} blocks, {stats.preemptions} preemptions"),
        *_reuse_rows(Reuse.of(stats)),
        ("TTFT", " now, ".join(_mean(meters.ttft)) + " overall"),
        ("ITL", " now, ".join(_mean(meters.itl)) + " overall"),
        *([(label, text) for label, text in _loop_texts(meters)]),
        *((f"CPU of {bar.label}", bar.text) for bar in _cpu(meters)),
    ]
    parts = ", ".join(f"{part.label} {part.text}" for part in _parts(meters))
    return [*rows, ("engine step", parts)] if parts else rows


def footer(meters: Meters) -> str:
    """What the probes cost."""
    if meters.probe_cpus is None:
        return "no probes: started without a recording"
    dropped = f"; {number(meters.probe_dropped)} events not written" if meters.probe_dropped else ""
    return f"probes cost {percent(meters.probe_cpus)} of a core{dropped}"


def _reuse_rows(reuse: Reuse) -> list[tuple[str, str]]:
    """Since the start; nothing of what the engine does not do."""
    cached, kept = reuse.cached_share, reuse.kept_share
    rows = [] if cached is None else [("prefix cache", f"had {percent(cached)} of {number(reuse.looked_up)} prompt tokens")]
    return rows if kept is None else [*rows, ("speculation", f"{percent(kept)} of {number(reuse.guessed)} guessed tokens kept")]


def _requests(meters: Meters) -> list[tuple[str, str]]:
    stats = meters.stats
    now = [("running", number(stats.running)), ("waiting", number(stats.waiting))]
    ended = [("finished", number(meters.finished)), ("failed", number(meters.failed))] if meters.finished is not None else []
    return now + ended


def _mean(mean: Mean) -> tuple[str, str]:
    return duration(mean.recent), duration(mean.overall)


def _loop_texts(meters: Meters) -> list[tuple[str, str]]:
    if meters.loop is None:
        return []
    lag = f"{duration(meters.loop.lag.recent)} mean, {duration(meters.loop.lag_max_s)} at most"
    return [("event loop lag", lag), ("event loop busy", percent(meters.loop.utilisation))]


def _loop(meters: Meters) -> dict[str, str | float] | None:
    loop = meters.loop
    if loop is None:
        return None
    lag = {"lag": duration(loop.lag.recent), "most": duration(loop.lag_max_s)}
    return {**lag, "busy": percent(loop.utilisation), "share": loop.utilisation}


def _cpu(meters: Meters) -> list[Bar]:
    """One bar a process, full at one core."""
    seen = [process for process in meters.processes if process.cpus is not None][:_ROWS]
    return [Bar(" + ".join(p.roles), _cpu_text(p.cpus or 0.0, p.rss_bytes), min(p.cpus or 0.0, 1.0)) for p in seen]


def _cpu_text(cpus: float, rss_bytes: int | None) -> str:
    return percent(cpus) + (f" · {data(rss_bytes)}" if rss_bytes is not None else "")


def _parts(meters: Meters) -> list[Part]:
    """The parts of a step along the bar, then the rest, between steps."""
    if meters.step is None:
        return []
    parts, start = [], 0.0
    for name, share in meters.step.parts.items():
        parts.append(Part(name, f"{100 * share:.0f} %", _PART_COLOURS[name], start, start + share))
        start += share
    return [*parts, Part("rest", f"{100 * max(1 - start, 0.0):.0f} %", "", start, 1.0)]
