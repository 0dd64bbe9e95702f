"""Statistics of repeated runs against exact references and on simulated truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations, permutations
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlab.record.stats import (
    Interval,
    bootstrap_ci,
    bootstrap_ratio,
    concurrency,
    drift,
    drifts,
    percentiles,
    steady_window,
    trend_chance,
)

positive = st.floats(0.1, 1e6)
numbers = st.lists(positive, min_size=1, max_size=12)
pairs = st.lists(st.tuples(positive, positive), min_size=1, max_size=12)
spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda span: (span[0], sum(span))), min_size=1, max_size=20)


def test_equal_values_leave_no_doubt() -> None:
    assert bootstrap_ci([7.0] * 6) == Interval(7.0, 7.0, 7.0)
    assert bootstrap_ratio([6.0] * 4, [3.0] * 4) == Interval(2.0, 2.0, 2.0)


def test_five_values_give_their_extremes() -> None:
    """An exact reference: of the 5**5 resamples 5.8 % have the least value as their median, more than the tail of 2.5 %."""
    assert bootstrap_ci([5, 1, 4, 2, 3], resamples=20_000) == Interval(3.0, 1.0, 5.0)


def test_mean_agrees_with_the_normal_approximation() -> None:
    values = np.random.default_rng(1).normal(100, 10, 400)
    found = bootstrap_ci(values, np.mean)
    error = values.std() / math.sqrt(len(values))
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.15 * error)


def test_higher_confidence_is_wider() -> None:
    values = np.random.default_rng(2).lognormal(0, 1, 40)
    narrow, wide = bootstrap_ci(values, confidence=0.5), bootstrap_ci(values, confidence=0.99)
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


@settings(deadline=None)
@given(numbers, st.integers(0, 3))
def test_interval_is_ordered_within_the_values_and_repeatable(values: list[float], seed: int) -> None:
    found = bootstrap_ci(values, resamples=50, seed=seed)
    assert min(values) <= found.low <= found.high <= max(values)
    assert found.value == pytest.approx(median(values))
    assert found == bootstrap_ci(values, resamples=50, seed=seed)


@settings(deadline=None)
@given(pairs, st.sampled_from([0.25, 2.0, 1024.0]))
def test_ratio_scales_and_inverts(rounds: list[tuple[float, float]], factor: float) -> None:
    a, b = (np.array(side) for side in zip(*rounds, strict=True))
    found, scaled, turned = (bootstrap_ratio(x, y, resamples=50) for x, y in ((a, b), (a * factor, b), (b, a)))
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx((found.value * factor, found.low * factor, found.high * factor))
    assert turned.value == pytest.approx(1 / found.value)
    assert bootstrap_ratio(a, b * 1.0, resamples=50) == found


def test_the_true_ratio_is_covered_as_often_as_promised() -> None:
    generator = np.random.default_rng(3)
    held = [1.2 in _simulated_ratio(generator) for _ in range(300)]
    assert 0.90 <= np.mean(held) <= 0.995


def test_rounds_cancel_what_disturbs_both_arms() -> None:
    """Rounds that differ threefold, arms that differ by 10 % within each: pairs see it, unpaired resampling would not."""
    generator = np.random.default_rng(4)
    rounds = generator.uniform(1, 3, 21)
    found = bootstrap_ratio(1.1 * rounds * generator.normal(1, 0.005, 21), rounds)
    assert 1.05 < found.low < found.high < 1.15
    unpaired = bootstrap_ci(rounds)
    assert (unpaired.high - unpaired.low) / unpaired.value > 0.2


def _simulated_ratio(generator: np.random.Generator) -> Interval:
    rounds = generator.lognormal(0, 0.2, 20)
    arms = (level * rounds * generator.lognormal(0, 0.1, 20) for level in (1.2, 1.0))
    return bootstrap_ratio(*arms, resamples=400)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_ci([]), "at least one"),
        (lambda: bootstrap_ci([1.0, math.nan]), "finite"),
        (lambda: bootstrap_ci([1.0], confidence=95), "confidence=95 must be between 0 and 1"),
        (lambda: bootstrap_ci([1.0], resamples=0), "resamples=0"),
        (lambda: bootstrap_ratio([1.0, 2.0], [1.0]), "a has 2 rounds and b 1"),
        (lambda: bootstrap_ratio([1.0], [0.0]), "positive"),
        (lambda: drift([0.0, 1.0]), "median of the first half is 0"),
        (lambda: steady_window([], []), "0 starts and 0 ends"),
        (lambda: steady_window([2.0], [1.0]), "no end before its start"),
    ],
)
def test_what_cannot_be_worked_out_says_why(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_drift_is_the_change_between_halves() -> None:
    assert drift([10, 10, 99, 12, 12]) == pytest.approx(0.2)
    assert drift([10, 8]) == pytest.approx(-0.2)
    assert drift([5]) == 0.0


def test_trend_chance_is_exact_for_few_runs() -> None:
    assert trend_chance([1, 2, 3]) == pytest.approx(2 / 6)
    assert trend_chance([5, 4, 3, 2, 1]) == pytest.approx(2 / 120)
    assert trend_chance([1, 1, 1, 1]) == pytest.approx(1)
    assert trend_chance([3]) == 1.0


@settings(deadline=None)
@given(st.permutations(range(6)))
def test_trend_chance_counts_orders(values: list[int]) -> None:
    def score(order: Sequence[int]) -> int:
        return abs(sum((later > earlier) - (later < earlier) for earlier, later in combinations(order, 2)))

    as_steady = [score(order) >= score(values) for order in permutations(range(6))]
    assert trend_chance(values) == pytest.approx(sum(as_steady) / len(as_steady))


def test_trend_chance_of_many_runs_goes_on_where_the_exact_one_ends() -> None:
    few, many = ([run if run % 3 else -run for run in range(n)] for n in (30, 31))
    assert trend_chance(few) == pytest.approx(trend_chance(many), abs=0.05)
    assert trend_chance(range(200)) < 1e-6


@settings(deadline=None)
@given(st.lists(st.floats(1, 1e3), min_size=2, max_size=30), st.sampled_from([0.5, 4.0]))
def test_drift_does_not_depend_on_the_unit(values: list[float], factor: float) -> None:
    scaled = [factor * value for value in values]
    assert drift(scaled) == pytest.approx(drift(values))
    assert drifts(scaled) == drifts(values)


@settings(deadline=None)
@given(st.permutations([98.0, 99.0, 100.0, 101.0, 102.0, 103.0, 104.0, 105.0]))
def test_the_guard_is_quiet_within_its_limit(values: list[float]) -> None:
    assert not drifts(values)


def test_the_guard_sees_a_machine_that_slows_down_but_not_noise() -> None:
    slowing = [100 * 0.97**run for run in range(12)]
    assert drifts(slowing)
    assert not drifts([100, 140, 80, 150, 70, 130, 120, 90])
    assert drifts([100, 120])


def test_steady_window_leaves_out_ramp_up_and_drain() -> None:
    starts, ends = list(range(10)), [100 + 5 * index for index in range(10)]
    assert steady_window(starts, ends) == (8.0, 105.0)


def test_steady_window_keeps_waves_and_single_requests_whole() -> None:
    assert steady_window([0, 0, 6, 6], [5, 5, 11, 12]) == (0.0, 12.0)
    assert steady_window([0, 7], [5, 9]) == (0.0, 9.0)
    assert steady_window([0.0], [math.inf]) == (0.0, 0.0)


@settings(deadline=None)
@given(spans)
def test_steady_window_is_inside_the_run_and_near_its_peak(requests: list[tuple[int, int]]) -> None:
    starts, ends = zip(*requests, strict=True)
    begin, end = steady_window(starts, ends)
    assert min(starts) <= begin <= end <= max(ends)
    times, running = concurrency(starts, ends)
    peak = max(running)
    assert running[np.searchsorted(times, begin)] >= min(0.9 * peak, peak - 1)


@settings(deadline=None)
@given(spans)
def test_concurrency_counts_who_is_there(requests: list[tuple[int, int]]) -> None:
    starts, ends = zip(*requests, strict=True)
    for time, running in zip(*concurrency(starts, ends), strict=True):
        assert running == sum(start <= time < end for start, end in requests)


def test_percentiles() -> None:
    assert percentiles([1, 2, 3, 4], (0, 50, 99.9, 100)) == pytest.approx({"p0": 1, "p50": 2.5, "p99.9": 3.997, "p100": 4})
    assert all(math.isnan(value) for value in percentiles([]).values())


def test_interval_reads_as_text() -> None:
    assert str(Interval(1.23456, 1.1, 1.3)) == "1.235 [1.1, 1.3]"
    assert str(Interval(123456.7, 999.96, -2000.0)) == "123,457 [1000, -2,000]"
    assert 1.2 in Interval(1.2, 1.1, 1.3) and 1.4 not in Interval(1.2, 1.1, 1.3)
