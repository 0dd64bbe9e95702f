"""A histogram that is only numbers: prometheus_client's own may keep its values in files that an environment variable names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts values by upper bound.

    Args:
        bounds: ascending; a value counts where it is at most the bound.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, ``times`` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by bound, as Prometheus has them."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))


def one_two_five(highest: int) -> list[int]:
    """1, 2, 5, 10, 20, … up to ``highest``."""
    series = (digit * 10**power for power in range(len(str(highest))) for digit in (1, 2, 5))
    return [value for value in series if value <= highest]
