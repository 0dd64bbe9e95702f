"""Logprobs of drawn tokens and of prompts, against a log-softmax in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import bits, chunk, exact, random_logits

from mqlab.logprobs import Logprobs
from mqlab.model.sampler import Sampler, score

VOCAB = 150


def check(told: Logprobs | None, logits: np.ndarray, token: int, count: int) -> None:
    """One token's: values, order and rank."""
    assert told is not None
    expected = torch.tensor(logits).double().log_softmax(-1).numpy()
    (row,) = told.rows()
    order = np.lexsort((np.arange(len(logits)), -logits))[:count]
    assert [i for i, _ in row] == [token, *order.tolist()]
    np.testing.assert_allclose([value for _, value in row], expected[[token, *order]], atol=1e-5)
    assert told.rank_list() == [1 + int((logits > logits[token]).sum())]


@settings(deadline=None, max_examples=150)
@given(
    logits=st.lists(st.one_of(st.integers(-3, 3), st.floats(-50, 50, width=32)), min_size=2, max_size=VOCAB),
    count=st.integers(-1, 20),
    temperature=st.sampled_from([0.0, 0.7, 2.0]),
    data=st.data(),
)
def test_raw_logprobs_are_those_of_the_model(logits: list[float], count: int, temperature: float, data: st.DataObject) -> None:
    """Whatever was done to the logits before the draw; ties go by id."""
    row = np.array(logits, np.float32)
    asks: dict[str, Any] = data.draw(
        st.sampled_from([{}, {"logit_bias": {0: 100.0}}, {"mask": bits([1], len(row))}, {"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.5}])
    )
    sampled = Sampler()(torch.tensor(row)[None], (chunk(temperature=temperature, logprobs=count, **asks),))
    assert sampled.logprobs is not None
    check(sampled.logprobs[0], row, sampled.tokens[0], len(row) if count < 0 else min(count, len(row)))


@pytest.mark.parametrize("count", [0, 1, 5, 20, 700, 3000])
def test_as_many_as_are_asked_for_of_a_large_vocabulary(count: int) -> None:
    logits = random_logits(3, 3000)
    chunks = [chunk(i, logprobs=count) for i in range(3)]
    sampled = Sampler()(logits.clone(), tuple(chunks))
    assert sampled.logprobs is not None
    for told, row, token in zip(sampled.logprobs, logits.numpy(), sampled.tokens, strict=True):
        check(told, row, token, count)


def test_only_who_asks_is_told() -> None:
    logits = random_logits(3, VOCAB)
    assert Sampler()(logits.clone(), (chunk(), chunk(), chunk())).logprobs is None
    sampled = Sampler()(logits.clone(), (chunk(), chunk(logprobs=2, banned=(1,)), chunk(logprobs=0, temperature=0)))
    assert sampled.logprobs is not None
    assert [told and told.width for told in sampled.logprobs] == [None, 3, 1]


@pytest.mark.parametrize(
    "filters",
    [{}, {"temperature": 0.5}, {"top_k": 7}, {"top_p": 0.8, "temperature": 1.5}, {"min_p": 0.1, "top_k": 9, "top_p": 0.9}],
    ids=str,
)
def test_processed_logprobs_are_those_that_were_drawn_from(filters: dict[str, Any]) -> None:
    logits = random_logits(1, VOCAB)
    asked = chunk(logprobs=-1, logit_bias={3: 4.0}, banned=(9,), **filters)
    steered = logits[0].numpy().copy()
    steered[3] += 4
    steered[9] = -np.inf
    sampled = Sampler("processed_logprobs")(logits, (asked,))
    assert sampled.logprobs is not None and sampled.logprobs[0] is not None
    values = dict(sampled.logprobs[0].rows()[0][1:])
    told = np.exp([values[token] for token in range(VOCAB)])
    np.testing.assert_allclose(told, exact(steered, **filters), atol=1e-5)


def test_the_model_s_own_zeros_have_no_logarithm_but_minus_infinity() -> None:
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, [7, 90]] = torch.tensor([1.0, 3.0])
    sampled = Sampler()(logits, (chunk(temperature=0, logprobs=3),))
    assert sampled.logprobs is not None and sampled.logprobs[0] is not None
    (row,) = sampled.logprobs[0].rows()
    assert [token for token, _ in row] == [90, 90, 7, 0]
    assert row[3][1] == -math.inf


@pytest.mark.parametrize("width", [0, 3, -1])
def test_targets_are_scored_as_the_model_says(width: int) -> None:
    logits = random_logits(40, VOCAB)
    targets = list(range(40))
    told = score(logits.clone(), targets, width)
    assert told.count == 40
    for each, row, target in zip(told.each(), logits.numpy(), targets, strict=True):
        check(each, row, target, VOCAB if width < 0 else width)


def test_nothing_to_score() -> None:
    assert score(torch.empty(0, VOCAB), [], 3).count == 0


def test_broken_logits_are_not_scored() -> None:
    logits = random_logits(3, VOCAB)
    logits[1, 70] = math.nan
    with pytest.raises(RuntimeError, match="row 1 of 3: the largest logit is nan"):
        score(logits, [0, 1, 2], 0)
