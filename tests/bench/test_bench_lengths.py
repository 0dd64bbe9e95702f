"""Lengths of prompts and answers: a function of the seed, with the mean that was asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlab.bench.arm_work import Work, due_times, make_requests
from mqlab.bench.compare_options import CompareConfig, Lengths
from mqlab.bench.lengths import draw_lengths, longest
from mqlab.errors import ConfigError
from mqlab.types import ModelInfo

INFO = ModelInfo(name="m", vocab_size=1000, max_model_len=9000, max_prompt_len=8999)


@pytest.mark.parametrize(("kind", "means"), [("fixed", (64, 32)), ("sharegpt", (225, 194)), ("sonnet", (550, 150))])
def test_each_data_set_has_its_own_means(kind: Lengths, means: tuple[int, int]) -> None:
    config = CompareConfig(lengths=kind)
    assert config.mean_lengths == means
    inputs, outputs = draw_lengths(kind, 200, *means, seed=3)
    assert (np.mean(inputs), np.mean(outputs)) == pytest.approx(means, abs=0.5)
    assert CompareConfig(lengths=kind, input_len=250, output_len=200).mean_lengths == (250, 200)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 300), mean=st.integers(8, 400))
def test_means_are_met_within_a_token_and_bounds_always(seed: int, count: int, mean: int) -> None:
    for kind in ("sharegpt", "sonnet"):
        inputs, outputs = draw_lengths(kind, count, mean, mean, seed)
        most = longest(kind, mean, mean)
        assert len(inputs) == len(outputs) == count
        assert min(inputs) >= 1 and min(outputs) >= 1 and max(inputs) <= most[0] and max(outputs) <= most[1]
        assert abs(np.mean(inputs) - mean) <= 1 and abs(np.mean(outputs) - mean) <= 1


def test_sharegpt_spreads_and_has_a_tail() -> None:
    inputs, outputs = draw_lengths("sharegpt", 1000, 225, 194, seed=1)
    assert np.median(inputs) < 0.7 * 225 and np.median(outputs) < 0.9 * 194
    assert np.std(np.log(inputs)) == pytest.approx(1.1, abs=0.15) and np.std(np.log(outputs)) == pytest.approx(0.7, abs=0.1)
    assert set(draw_lengths("sonnet", 100, 250, 200, seed=1)[0]) == set(range(244, 257))


def test_requests_and_their_times_depend_on_the_seed_alone() -> None:
    work = Work(7, 20, 225, 194, 30, "sharegpt", 10.0)
    requests = make_requests(work, INFO)
    assert requests == make_requests(work, INFO) and due_times(work) == due_times(work)
    other = Work(8, 20, 225, 194, 30, "sharegpt", 10.0)
    assert requests[0].prompt != make_requests(other, INFO)[0].prompt and due_times(work) != due_times(other)
    assert [len(request.prompt) for request in requests] == draw_lengths("sharegpt", 20, 225, 194, 7)[0]
    whole = [request for request in requests if len(request.prompt) > 30]
    assert len({tuple(request.prompt[:30]) for request in whole}) == 1
    due = due_times(work)
    assert due == sorted(due) and due[-1] == pytest.approx(2e9)
    assert set(due_times(Work(7, 20, 225, 194))) == {0}


def test_a_rate_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--rate=-1.0 must be at least 0"):
        CompareConfig(rate=-1.0)
