"""A histogram that is only numbers: prometheus_client's own may keep its values in files that an environment variable names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from mqlab.server.metrics.tally import Words


class Histogram:
    """Counts values by upper bound, in words of a tally.

    Args:
        words: where to count: one for each bound and one beyond, and the sum behind them.
        start: the first of them.
        bounds: ascending; a value counts where it is at most the bound.
    """

    def __init__(self, words: Words, start: int, bounds: Sequence[float]) -> None:
        self._words = words
        self._start = start
        self._bounds = tuple(bounds)
        self._sum = start + len(self._bounds) + 1

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, ``times`` times."""
        words = self._words
        words[self._start + bisect_left(self._bounds, value)] += times
        words[self._sum] += value * times


def width(bounds: Sequence[float]) -> int:
    """Words that a histogram takes."""
    return len(bounds) + 2


def buckets(counts: Sequence[float], bounds: Sequence[float], highest: float = float("inf")) -> list[tuple[str, float]]:
    """Cumulative counts by bound, as Prometheus has them.

    Args:
        counts: by bound, and beyond the last one.
        highest: bounds above it are left out.
    """
    names = [*(str(float(bound)) for bound in bounds if bound <= highest), "+Inf"]
    below = list(accumulate(counts))
    return [*zip(names[:-1], below, strict=False), ("+Inf", below[-1])]


def one_two_five(highest: int) -> list[int]:
    """1, 2, 5, 10, 20, … up to ``highest``."""
    series = (digit * 10**power for power in range(len(str(highest))) for digit in (1, 2, 5))
    return [value for value in series if value <= highest]
