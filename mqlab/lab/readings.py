"""Readings of a running engine, and an hour of them in little memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from mqlab.types import EngineStats

Counters = Mapping[str, Mapping[str, int]]
"""Counters by name of every process that writes any, by writer: ``{"front-123": {"loop.ticks": 7}}``."""


@dataclass(frozen=True)
class Reading:
    """Everything that could be seen at one moment.

    Attributes:
        stats: what the engine published; ``stats.stamp_ns`` (CLOCK_MONOTONIC) is when.
        counters: of all processes; empty where nothing is recorded.
    """

    stats: EngineStats
    counters: Counters = field(default_factory=dict)


@dataclass(frozen=True)
class _Row:
    """A reading with its counters as bare words; names are shared between rows."""

    stats: EngineStats
    pages: Mapping[str, tuple[tuple[str, ...], array[int]]]

    def reading(self) -> Reading:
        return Reading(self.stats, {writer: dict(zip(names, words, strict=True)) for writer, (names, words) in self.pages.items()})


class History:
    """The newest readings, oldest first; with 200 counters one takes about 2 KiB.

    One thread adds, any reads.

    Args:
        kept: how many; older ones are forgotten.
    """

    def __init__(self, kept: int) -> None:
        self._rows: deque[_Row] = deque(maxlen=kept)
        self._names: dict[str, tuple[str, ...]] = {}

    def add(self, reading: Reading) -> None:
        """Append the newest."""
        pages = {writer: (self._shared(writer, tuple(page)), array("q", page.values())) for writer, page in reading.counters.items()}
        self._rows.append(_Row(reading.stats, pages))

    def last(self, seconds: float = float("inf")) -> list[Reading]:
        """Those at most ``seconds`` older than the newest."""
        return [row.reading() for row in self._newest(seconds)]

    def stats(self, seconds: float = float("inf")) -> list[EngineStats]:
        """The engine's figures in those, for less work."""
        return [row.stats for row in self._newest(seconds)]

    def _newest(self, seconds: float) -> list[_Row]:
        rows = list(self._rows)
        return rows[bisect_left(rows, rows[-1].stats.stamp_ns - seconds * 1e9, key=lambda row: row.stats.stamp_ns) :] if rows else []

    def _shared(self, writer: str, names: tuple[str, ...]) -> tuple[str, ...]:
        if self._names.get(writer) != names:
            self._names[writer] = names
        return self._names[writer]
