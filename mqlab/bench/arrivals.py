"""When requests arrive: Poisson, gamma, evenly spaced, all at once, or with a rate that climbs. Fixed before the run begins.

The processes and their names are those of ``vllm bench serve`` (0.33): gaps between arrivals are drawn from a gamma distribution
whose shape is the burstiness, so 1 is Poisson; without a ramp all gaps are scaled so that the run has the rate that was asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

Strategy = Literal["linear", "exponential"]


@dataclass(frozen=True)
class Ramp:
    """A rate that climbs from the first request to the last one, in requests/s."""

    strategy: Strategy
    start_rps: float
    end_rps: float

    def rates(self, count: int) -> np.ndarray:
        """The rate at each of ``count`` requests, float64."""
        progress = np.arange(count) / max(count - 1, 1)
        if self.strategy == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        return self.start_rps * (self.end_rps / self.start_rps) ** progress


def arrival_times(count: int, rate: float, burstiness: float = 1.0, seed: int = 0, *, ramp: Ramp | None = None) -> np.ndarray:
    """Seconds after the start at which each request is due, ascending, float64 ``[count]``.

    Args:
        rate: requests/s, above 0; ``inf`` means all at once. Not used with a ramp.
        burstiness: shape of the gamma distribution, above 0: 1 is Poisson, less is burstier, more is smoother, ``inf`` is even.
        seed: the same seed gives the same times.
        ramp: a rate that climbs, instead of ``rate``.
    """
    if ramp is not None:
        return np.cumsum(_unit_gaps(count, burstiness, seed) / ramp.rates(count))
    if count == 0 or math.isinf(rate):
        return np.zeros(count)
    times = np.cumsum(_unit_gaps(count, burstiness, seed))
    return times * (count / rate / times[-1])


def _unit_gaps(count: int, burstiness: float, seed: int) -> np.ndarray:
    """Gaps of mean 1."""
    if math.isinf(burstiness):
        return np.ones(count)
    return np.random.default_rng(seed).gamma(burstiness, 1 / burstiness, count)
