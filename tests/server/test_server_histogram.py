"""The histogram: cumulative buckets, as Prometheus reads them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from mqlab.server.metrics.histogram import Histogram, buckets, one_two_five, width

VALUES = st.lists(st.floats(0, 100), max_size=50)
BOUNDS = st.lists(st.floats(0, 100), min_size=1, max_size=10, unique=True).map(sorted)


def counted(values: list[float], bounds: list[float]) -> list[float]:
    """The words of a histogram behind two words of somebody else."""
    words = [-1.0, -2.0] + [0.0] * width(bounds)
    histogram = Histogram(words, 2, bounds)
    for value in values:
        histogram.observe(value)
    assert words[:2] == [-1.0, -2.0]
    return words[2:]


@given(VALUES, BOUNDS)
def test_a_bucket_counts_all_values_up_to_its_bound(values: list[float], bounds: list[float]) -> None:
    *counts, total = counted(values, bounds)
    found = buckets(counts, bounds)
    assert [count for _, count in found[:-1]] == [sum(value <= bound for value in values) for bound in bounds]
    assert found[-1] == ("+Inf", len(values))
    assert math.isclose(total, sum(values), abs_tol=1e-6)


@given(VALUES, BOUNDS, st.floats(0, 100))
def test_bounds_that_are_not_shown_lose_nothing(values: list[float], bounds: list[float], highest: float) -> None:
    *counts, _ = counted(values, bounds)
    whole, shown = buckets(counts, bounds), buckets(counts, bounds, highest)
    assert shown == [*(one for one in whole[:-1] if float(one[0]) <= highest), whole[-1]]


@given(st.floats(0, 10), st.integers(1, 9))
def test_a_value_may_count_several_times(value: float, times: int) -> None:
    words = [0.0] * width([5])
    Histogram(words, 0, [5]).observe(value, times)
    often = counted([value] * times, [5])
    assert words[:-1] == often[:-1]
    assert math.isclose(words[-1], often[-1])


def test_the_series_for_tokens() -> None:
    assert one_two_five(100) == [1, 2, 5, 10, 20, 50, 100]
    assert one_two_five(8192)[-1] == 5000
