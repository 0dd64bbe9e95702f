"""When requests are due."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.bench.arrivals import Ramp, arrival_times


def ks_distance(gaps: np.ndarray) -> float:
    """Kolmogorov and Smirnov's distance between gaps and the exponential distribution of their own mean."""
    gaps = np.sort(gaps)
    expected = 1 - np.exp(-gaps / gaps.mean())
    steps = np.arange(len(gaps) + 1) / len(gaps)
    return max(np.abs(expected - steps[:-1]).max(), np.abs(expected - steps[1:]).max())


def gaps_of(times: np.ndarray) -> np.ndarray:
    return np.diff(times, prepend=0.0)


@pytest.mark.parametrize("seed", range(5))
def test_burstiness_1_has_exponential_gaps(seed: int) -> None:
    gaps = gaps_of(arrival_times(2000, 150.0, seed=seed))
    assert ks_distance(gaps) < 1.63 / math.sqrt(len(gaps)), "the 1 % limit of the test"


def test_the_distance_sees_other_gaps() -> None:
    for burstiness in (0.5, 2.0, math.inf):
        assert ks_distance(gaps_of(arrival_times(2000, 150.0, burstiness, seed=0))) > 1.63 / math.sqrt(2000)


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_burstiness_is_the_shape_of_a_gamma_distribution(burstiness: float) -> None:
    gaps = gaps_of(arrival_times(20000, 10.0, burstiness, seed=1))
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.1)


@given(
    count=st.integers(1, 200),
    rate=st.floats(0.01, 1e5),
    burstiness=st.floats(0.1, 100) | st.just(math.inf),
    seed=st.integers(0, 2**32 - 1),
)
def test_times_ascend_have_the_rate_and_follow_from_the_seed(count: int, rate: float, burstiness: float, seed: int) -> None:
    times = arrival_times(count, rate, burstiness, seed)
    assert times.shape == (count,) and (np.diff(times, prepend=0.0) >= 0).all()
    assert times[-1] == pytest.approx(count / rate)
    assert (times == arrival_times(count, rate, burstiness, seed)).all()


def test_another_seed_gives_other_times() -> None:
    assert (arrival_times(50, 10, seed=1) != arrival_times(50, 10, seed=2)).any()


def test_inf_is_all_at_once_and_inf_burstiness_is_even() -> None:
    assert arrival_times(3, math.inf).tolist() == [0, 0, 0]
    assert arrival_times(4, 8.0, math.inf).tolist() == pytest.approx([0.125, 0.25, 0.375, 0.5])
    assert arrival_times(0, 5.0).tolist() == []


def test_ramps_climb_from_one_rate_to_the_other() -> None:
    assert Ramp("linear", 1, 5).rates(5).tolist() == [1, 2, 3, 4, 5]
    assert Ramp("exponential", 1, 16).rates(5).tolist() == pytest.approx([1, 2, 4, 8, 16])
    assert Ramp("linear", 3, 9).rates(1).tolist() == [3]
    times = arrival_times(5, math.inf, math.inf, ramp=Ramp("exponential", 1, 16))
    assert gaps_of(times).tolist() == pytest.approx([1, 1 / 2, 1 / 4, 1 / 8, 1 / 16])
