"""What is done to logits before a token is chosen: masks, bans, biases, penalties."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import bits, chunk, draws, random_logits

from mqlab.model.sampler import Sampler
from mqlab.plan import Chunk

VOCAB = 150

sample = Sampler()
KINDS: list[dict[str, Any]] = [{"temperature": 0}, {}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}, {"temperature": 2.0, "top_k": 140}]


def processed(logits: torch.Tensor, asked: Chunk) -> np.ndarray:
    """Log probabilities [vocab] that a greedy request is told after all that changes logits."""
    sampled = Sampler("processed_logprobs")(logits.clone()[None], (asked,))
    assert sampled.logprobs is not None and sampled.logprobs[0] is not None
    values = np.full(len(logits), np.nan)
    for token, value in sampled.logprobs[0].rows()[0][1:]:
        values[token] = value
    return values


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    with np.errstate(over="ignore"):
        return shifted - np.log(np.exp(shifted).sum())


@pytest.mark.parametrize("params", KINDS, ids=str)
def test_banned_tokens_never_appear(params: dict[str, Any]) -> None:
    logits = random_logits(1, VOCAB)[0]
    banned = tuple(logits.topk(3).indices.tolist())
    assert not set(draws(logits, 200, banned=banned, **params)) & set(banned)


@pytest.mark.parametrize("params", KINDS, ids=str)
@pytest.mark.parametrize("allowed", [[0], [31, 32], [63, 64, 128], [149], list(range(60, 150))], ids=str)
def test_only_what_a_mask_allows_appears(params: dict[str, Any], allowed: list[int]) -> None:
    logits = random_logits(1, VOCAB)[0]
    chosen = draws(logits, 100, mask=bits(allowed, VOCAB), **params)
    assert set(chosen) <= set(allowed)
    assert max(allowed, key=lambda token: float(logits[token])) in chosen


def test_a_mask_may_be_shorter_or_longer_than_the_vocabulary() -> None:
    """The tokenizer of a model knows fewer ids, or more, than its weights have rows."""
    logits = torch.zeros(2, VOCAB)
    logits[:, 140] = 1
    short, long = bits([3], 64), bits([3, 200], 256)
    assert sample(logits, (chunk(temperature=0, mask=short), chunk(temperature=0, mask=long))).tokens == (3, 3)


@pytest.mark.parametrize("params", KINDS, ids=str)
def test_a_row_of_which_all_is_masked_gives_no_token_and_leaves_its_neighbours_alone(params: dict[str, Any]) -> None:
    nothing = np.zeros(5, np.uint32)
    empty = [
        chunk(mask=nothing, logprobs=2, **params),
        chunk(banned=tuple(range(VOCAB)), **params),
        chunk(mask=bits([1], VOCAB), banned=(1,), **params),
        chunk(mask=nothing, logit_bias={1: 100.0}, history=[1, 2], num_prompt=1, presence_penalty=-2.0, **params),
    ]
    for mode in ("raw_logprobs", "processed_logprobs"):
        sampled = Sampler(mode)(random_logits(5, VOCAB), (*empty, chunk(temperature=0, logprobs=0)))
        assert sampled.tokens[:4] == (-1, -1, -1, -1)
        assert sampled.tokens[4] == int(random_logits(5, VOCAB)[4].argmax())
        assert sampled.logprobs is not None
        assert sampled.logprobs[:4] == (None, None, None, None)
        assert sampled.logprobs[4] is not None


@pytest.mark.parametrize("params", KINDS, ids=str)
def test_biases_at_either_end_force_and_ban(params: dict[str, Any]) -> None:
    logits = random_logits(1, VOCAB)[0]
    best = int(logits.argmax())
    assert set(draws(logits, 100, logit_bias={149: 100.0}, **params)) == {149}
    assert best not in draws(logits, 200, logit_bias={best: -100.0}, **params)


def test_a_bias_of_minus_100_bans_however_large_the_logit() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 7] = 1000
    assert sample(logits, (chunk(temperature=0, logit_bias={7: -100.0}),)).tokens == (0,)


def test_biases_are_added() -> None:
    logits = random_logits(1, VOCAB)[0]
    expected = logits.numpy().copy()
    expected[[3, 90]] += [1.5, -20]
    told = processed(logits, chunk(temperature=0, logprobs=-1, logit_bias={3: 1.5, 90: -20.0}))
    np.testing.assert_allclose(told, log_softmax(expected), atol=1e-5)


def test_ids_beyond_the_vocabulary_are_passed_over() -> None:
    asked = chunk(
        temperature=0, banned=(VOCAB, 10**9), logit_bias={VOCAB: 5.0}, history=[VOCAB, 2**31 - 1], num_prompt=1, presence_penalty=1.0
    )
    logits = random_logits(1, VOCAB)
    assert sample(logits.clone(), (asked,)).tokens == (int(logits.argmax()),)


@settings(deadline=None, max_examples=150)
@given(
    history=st.lists(st.integers(0, VOCAB - 1) | st.integers(0, 5), min_size=1, max_size=80),
    share=st.floats(0, 1),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    repetition=st.floats(0.1, 10),
)
def test_penalties_follow_their_formulas(history: list[int], share: float, presence: float, frequency: float, repetition: float) -> None:
    """Repetition looks at prompt and output, presence and frequency at the output alone."""
    logits = random_logits(1, VOCAB)[0]
    num_prompt = round(share * len(history))
    expected = logits.double().numpy()
    for token in set(history):
        expected[token] = expected[token] / repetition if expected[token] > 0 else expected[token] * repetition
    for token in set(history[num_prompt:]):
        expected[token] -= presence + frequency * history[num_prompt:].count(token)
    params = {"presence_penalty": presence, "frequency_penalty": frequency, "repetition_penalty": repetition}
    for ids in (history, tuple(history), array("i", history), np.array(history)):
        told = processed(logits, chunk(temperature=0, logprobs=-1, history=ids, num_prompt=num_prompt, **params))
        np.testing.assert_allclose(told, log_softmax(expected), atol=1e-5, rtol=1e-6)


def test_a_first_token_is_penalised_for_the_prompt_by_repetition_alone() -> None:
    logits = random_logits(1, VOCAB)[0]
    plain = processed(logits, chunk(temperature=0, logprobs=-1))
    seen = {"history": [1, 2, 3, 3, 3], "num_prompt": 5, "temperature": 0, "logprobs": -1}
    assert (processed(logits, chunk(presence_penalty=2.0, frequency_penalty=2.0, **seen)) == plain).all()
    assert (processed(logits, chunk(repetition_penalty=1.5, **seen)) != plain).all()


def test_penalties_of_several_rows_stay_in_their_rows() -> None:
    logits = torch.zeros(3, VOCAB)
    chunks = [chunk(temperature=0, history=[0] * (i + 1) + list(range(1, i + 1)), num_prompt=0, presence_penalty=1.0) for i in range(3)]
    assert sample(logits, tuple(chunks)).tokens == (1, 2, 3)


@pytest.mark.parametrize("repetition", [5e-324, 1e-300, 1e300])
@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.5, "top_k": 7}, {"temperature": 1e-5}], ids=str)
def test_no_penalty_makes_a_logit_infinite(repetition: float, params: dict[str, Any]) -> None:
    """A request alone must not end the engine, which takes infinite logits for broken weights."""
    asked = chunk(repetition_penalty=repetition, history=list(range(VOCAB)), num_prompt=9, logprobs=3, **params)
    sampled = sample(random_logits(1, VOCAB), (asked,))
    assert 0 <= sampled.tokens[0] < VOCAB
    assert sampled.logprobs is not None and sampled.logprobs[0] is not None
    assert all(not math.isnan(value) for _, value in sampled.logprobs[0].rows()[0])


def test_masks_come_before_biases_and_biases_before_penalties() -> None:
    """As vLLM has it: a bias cannot lift a ban, and a penalty divides the biased logit."""
    logits = torch.full((VOCAB,), -1.0)
    asked = {"temperature": 0, "logprobs": -1, "history": [4], "num_prompt": 1, "repetition_penalty": 2.0}
    told = processed(logits, chunk(mask=bits([4, 5], VOCAB), logit_bias={4: 9.0, 6: 100.0}, **asked))
    assert (np.flatnonzero(np.isfinite(told)) == [4, 5]).all()
    assert told[4] - told[5] == pytest.approx(4 + 1)
