"""The histogram: cumulative buckets, as Prometheus reads them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from mqlab.server.histogram import Histogram, one_two_five

VALUES = st.lists(st.floats(0, 100), max_size=50)


@given(VALUES, st.lists(st.floats(0, 100), min_size=1, max_size=10, unique=True).map(sorted))
def test_a_bucket_counts_all_values_up_to_its_bound(values: list[float], bounds: list[float]) -> None:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    buckets = histogram.buckets()
    assert [count for _, count in buckets[:-1]] == [sum(value <= bound for value in values) for bound in bounds]
    assert buckets[-1] == ("+Inf", len(values))
    assert math.isclose(histogram.sum, sum(values), abs_tol=1e-6)


@given(st.floats(0, 10), st.integers(1, 9))
def test_a_value_may_count_several_times(value: float, times: int) -> None:
    once, often = Histogram([5]), Histogram([5])
    often.observe(value, times)
    for _ in range(times):
        once.observe(value)
    assert once.buckets() == often.buckets()


def test_the_series_for_tokens() -> None:
    assert one_two_five(100) == [1, 2, 5, 10, 20, 50, 100]
    assert one_two_five(8192)[-1] == 5000
