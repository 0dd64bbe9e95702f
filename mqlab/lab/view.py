"""What a dashboard shows: a topology with what goes through it now, and the figures of engine, front and processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise

import psutil

from mqlab.lab.meters import Meters, measure
from mqlab.lab.panels import SECONDS, draw_panels, footer, summary
from mqlab.lab.picture import draw
from mqlab.lab.render import LIGHTS, TROUBLE
from mqlab.lab.sampler import Sampler
from mqlab.lab.sparkline import Point
from mqlab.lab.templating import render
from mqlab.types import EngineStats, ModelInfo, Shape

SPAN_S = 2.2
"""A rate is taken between the newest reading and the oldest within this: over two seconds."""


class View:
    """What there is to see, drawn anew on each call. It knows a sampler's readings and nothing that is measured.

    Args:
        info: what the engine serves at the moment; models come and go while it is looked at. None where that is not known.
    """

    def __init__(self, sampler: Sampler, shape: Shape, name: str, info: Callable[[], ModelInfo] | None = None) -> None:
        self._sampler = sampler
        self._shape = shape
        self._name = name
        self._info = info

    @property
    def title(self) -> str:
        """Whose figures these are."""
        return self._name if self._info is None else f"{self._name} · {self._info().name} · {self._shape.name}"

    @property
    def over(self) -> bool:
        """Whether what it shows has ended."""
        return self._sampler.stopped

    def meters(self) -> Meters:
        """As of the newest reading."""
        readings = self._sampler.readings(SPAN_S)
        return measure(readings[0], readings[-1], self._shape)

    def html(self, *, live: bool = False) -> str:
        """The whole picture; ``live`` says that it is about to be replaced by a newer one."""
        meters = self.meters()
        state, detail = self._state(meters)
        return render(
            "dashboard.html.j2",
            {
                "title": self.title,
                "state": detail or ("live" if live else "snapshot"),
                "light": LIGHTS.get(state, TROUBLE),
                "when": f"{_clock(meters.stats.stamp_ns):%H:%M:%S}",
                "picture": draw(self._shape, meters),
                "panels": draw_panels(meters, _rates(self._sampler.pulse(SECONDS))),
                "footer": footer(meters),
            },
        )

    def text(self) -> str:
        """The same in words."""
        meters = self.meters()
        _, detail = self._state(meters)
        rows = [*summary(meters), ("probes", footer(meters))]
        return "\n".join([f"{self.title}: {detail or 'snapshot'}", *(f"  {label:16} {text}" for label, text in rows)])

    def static(self) -> dict[str, str]:
        """Words and picture as a display bundle."""
        return {"text/plain": self.text(), "text/html": self.html()}

    def _state(self, meters: Meters) -> tuple[str, str]:
        if self.over:
            return "stopped", "stopped; the figures are its last"
        gone = [f"{' + '.join(process.roles)} (pid {process.pid}) is gone" for process in meters.processes if not _lives(process.pid)]
        if gone:
            return "dead", "; ".join(gone)
        model = "ready" if self._info is None else self._info().state
        return model, "" if model == "ready" else model


def _clock(stamp_ns: int) -> datetime:
    """The time of day of a reading."""
    return datetime.now() - timedelta(microseconds=(time.monotonic_ns() - stamp_ns) / 1000)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _rates(pulse: list[EngineStats]) -> list[Point]:
    points = []
    for before, now in pairwise(pulse):
        seconds = max(now.stamp_ns - before.stamp_ns, 1) / 1e9
        points.append((now.stamp_ns / 1e9, (now.generation_tokens - before.generation_tokens) / seconds))
    return points
