"""Statistics of repeated runs: intervals instead of single numbers, and guards that say when a comparison is not to be trusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

DRIFT_LIMIT = 0.10
"""A change of the median over the order of the runs above which they are in doubt (the guard of simllm's PR 204, which 29.5 % voided)."""

STEADY_SHARE = 0.9
"""Share of the greatest concurrency from which a run counts as steady."""

_CHUNK_ELEMENTS = 4_000_000
_EXACT_RUNS = 30


Statistic = Callable[..., Any]
"""A number of many values, along an ``axis``, as numpy's own are: ``np.median``, ``np.mean``."""


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval.

    Attributes:
        value: the statistic of all values as they were measured.
        low, high: bounds of the interval.
        confidence: how often such intervals hold the truth.
    """

    value: float
    low: float
    high: float
    confidence: float = 0.95

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    def __str__(self) -> str:
        return f"{_short(self.value)} [{_short(self.low)}, {_short(self.high)}]"


def _short(value: float) -> str:
    """Four digits, and thousands apart rather than powers of ten."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def bootstrap_ci(
    values: ArrayLike, statistic: Statistic = np.median, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap of one statistic (Efron 1979).

    With few values the interval of a median ends at values that were measured: 5 values give their least and greatest, which hold
    the true median in 94 % of cases; with fewer, less is promised than ``confidence`` says.

    Args:
        values: [n], at least one, finite.
        statistic: takes ``axis``.
        seed: the same values and seed give the same interval.

    Raises:
        ValueError: nothing to resample, a value is not finite, or an argument is out of range.
    """
    numbers = _checked(values, "values")
    draws = _resampled(len(numbers), resamples, seed, lambda rows: statistic(numbers[rows], axis=1))
    return _interval(float(statistic(numbers[None, :], axis=1)[0]), draws, confidence)


def bootstrap_ratio(
    a: ArrayLike, b: ArrayLike, statistic: Statistic = np.median, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """How many times ``a`` is ``b``: ratio of their medians, from interleaved runs.

    Whole rounds are resampled, so what disturbed both arms of a round stays in both and mostly cancels.

    Args:
        a, b: [rounds], element ``i`` of both from the same round; positive.

    Raises:
        ValueError: lengths differ, a value is not positive and finite, or an argument is out of range.
    """
    over, under = _checked(a, "a"), _checked(b, "b")
    if len(over) != len(under):
        raise ValueError(f"a has {len(over)} rounds and b {len(under)}: rounds are pairs, both must have as many")
    if (over <= 0).any() or (under <= 0).any():
        raise ValueError("a ratio needs positive values: one of a or b is 0 or less")

    def ratio(rows: np.ndarray) -> np.ndarray:
        return statistic(over[rows], axis=1) / statistic(under[rows], axis=1)

    whole = float(ratio(np.arange(len(over))[None, :])[0])
    return _interval(whole, _resampled(len(over), resamples, seed, ratio), confidence)


def drift(values: ArrayLike) -> float:
    """By which share the median changes from the first half of the runs to the second, in the order in which they ran.

    With an odd number the middle run is in neither half. Fewer than two runs cannot drift: 0.

    Raises:
        ValueError: a value is not finite, or the first half's median is 0.
    """
    numbers = _checked(values, "values")
    half = len(numbers) // 2
    if not half:
        return 0.0
    first, second = float(np.median(numbers[:half])), float(np.median(numbers[-half:]))
    if first == 0:
        raise ValueError("the median of the first half is 0: a relative change has no meaning")
    return (second - first) / abs(first)


def drifts(values: ArrayLike, limit: float = DRIFT_LIMIT, significance: float = 0.05) -> bool:
    """The guard: whether runs change by more than ``limit`` over their order, and not by chance.

    Below five runs chance can never be excluded at 5 %, so the limit alone decides.
    """
    numbers = _checked(values, "values")
    return abs(drift(numbers)) > limit and (len(numbers) < 5 or trend_chance(numbers) <= significance)


def trend_chance(values: ArrayLike) -> float:
    """How likely runs without a trend would rise or fall at least this steadily: Mann and Kendall's two-sided test.

    Exact for up to 30 runs that all differ, beyond by the normal approximation; equal runs make it only more careful.
    """
    numbers = _checked(values, "values")
    n, score = len(numbers), abs(_kendall(numbers))
    if n <= _EXACT_RUNS:
        falling = np.ones(1)  # chance of each number of falling pairs: the k-th run falls below 0 to k - 1 of those before it
        for before in range(1, n):
            falling = np.convolve(falling, np.full(before + 1, 1 / (before + 1)))
        scores = n * (n - 1) // 2 - 2 * np.arange(len(falling))
        return float(falling[np.abs(scores) >= score].sum())
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return math.erfc(max(score - 1, 0) / deviation / math.sqrt(2))


def steady_window(starts: ArrayLike, ends: ArrayLike, share: float = STEADY_SHARE) -> tuple[float, float]:
    """A run without its ramp-up and drain: from the first moment near the greatest concurrency to the last.

    "Near" is ``share`` of the maximum, or one less than it, since at low concurrency one request is more than a tenth. SGLang's
    steady-state benchmark (PR 30918) takes the longest stretch above a share instead; requests of one length end in waves, and it
    would keep one wave and leave out the gaps between them, which are part of what a run costs.

    Args:
        starts, ends: [requests], when each began and ended, in any unit; an open end is ``inf``.

    Returns:
        Begin and end in the same unit; the whole run where concurrency never exceeds one.

    Raises:
        ValueError: no requests, lengths differ, or a request ends before it starts.
    """
    first, last = np.asarray(starts, dtype=float), np.asarray(ends, dtype=float)
    if not len(first) or len(first) != len(last) or (last < first).any():
        raise ValueError(f"{len(first)} starts and {len(last)} ends must be as many, at least one, and no end before its start")
    times, running = concurrency(first, last)
    peak = running.max()
    steady = np.flatnonzero(running >= min(share * peak, peak - 1))
    return float(times[steady[0]]), float(times[min(steady[-1] + 1, len(times) - 1)])


def concurrency(starts: ArrayLike, ends: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Requests in flight over time: times [n] at which the number changes, and the number [n] from each on.

    Open ends (``inf``) never come down. What ends and what starts at one instant overlap nowhere and leave no dip.
    """
    first = np.asarray(starts, dtype=float)
    last = np.asarray(ends, dtype=float)
    last = last[np.isfinite(last)]
    times = np.concatenate((first, last))
    changes = np.concatenate((np.ones(len(first), dtype=int), -np.ones(len(last), dtype=int)))
    instants, which = np.unique(times, return_inverse=True)
    return instants, np.cumsum(np.bincount(which, weights=changes, minlength=len(instants))).astype(int)


def percentiles(values: ArrayLike, wanted: Iterable[float] = (50, 90, 99)) -> dict[str, float]:
    """Percentiles by linear interpolation, as ``{"p50": …, "p99.9": …}``; NaN where there are no values."""
    numbers = np.asarray(values, dtype=float)
    return {f"p{q:g}": float(np.percentile(numbers, q)) if numbers.size else math.nan for q in wanted}


def _checked(values: ArrayLike, name: str) -> np.ndarray:
    numbers = np.asarray(values, dtype=float)
    if numbers.ndim != 1 or not len(numbers) or not np.isfinite(numbers).all():
        raise ValueError(f"{name} must be a list of finite numbers, at least one: {numbers!r:.120}")
    return numbers


def _resampled(n: int, resamples: int, seed: int, statistic: Any) -> np.ndarray:
    """The statistic of ``resamples`` draws with replacement of row numbers, in chunks that fit in memory."""
    if resamples < 1:
        raise ValueError(f"resamples={resamples} must be at least 1")
    generator = np.random.default_rng(seed)
    chunk = max(1, _CHUNK_ELEMENTS // n)
    sizes = [min(chunk, resamples - done) for done in range(0, resamples, chunk)]
    return np.concatenate([statistic(generator.integers(0, n, (size, n))) for size in sizes])


def _interval(value: float, draws: np.ndarray, confidence: float) -> Interval:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must be between 0 and 1, for example 0.95")
    tail = 50 * (1 - confidence)
    low, high = np.percentile(draws, (tail, 100 - tail))
    return Interval(value, float(low), float(high), confidence)


def _kendall(values: Sequence[float] | np.ndarray) -> int:
    """Pairs that rise in run order, less those that fall."""
    numbers = np.asarray(values)
    return int(np.triu(np.sign(numbers[None, :] - numbers[:, None]), 1).sum())
