"""Draws: what they depend on, and how they are distributed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from mqlab_kernels.race_cpu import noise_key
from sampling import bits, chunk, draws, exact, on_a_boundary, random_logits

from mqlab.model.attention import use_threads
from mqlab.model.sampler import Sampled, Sampler
from mqlab.plan import Chunk

VOCAB = 150
"""Three blocks, the last one short."""

sample = Sampler()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_k": 100},
        {"top_k": VOCAB - 1},
        {"top_p": 0.7},
        {"top_p": 0.999},
        {"top_p": 0.05},
        {"min_p": 0.5},
        {"min_p": 0.02, "temperature": 2.0},
        {"top_k": 5, "top_p": 0.8, "temperature": 1.3},
        {"top_k": 40, "min_p": 0.05},
        {"top_p": 0.9, "min_p": 0.05},
        {"top_k": 60, "top_p": 0.95, "min_p": 0.01, "temperature": 1.7},
    ],
    ids=str,
)
def test_draws_follow_the_exact_distribution(params: dict[str, Any]) -> None:
    check_distribution(random_logits(1, VOCAB)[0], params)


@pytest.mark.parametrize("params", [{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 1.0}, {"top_k": 7, "top_p": 0.5}], ids=str)
def test_draws_among_ties_follow_the_exact_distribution(params: dict[str, Any]) -> None:
    """The filters keep the lowest ids of equal logits."""
    logits = torch.full((VOCAB,), -1.0)
    logits[[3, 4, 70, 71, 140, 141]] = 2.0
    logits[[5, 66, 67, 149]] = 1.0
    check_distribution(logits, params)


def check_distribution(logits: torch.Tensor, params: dict[str, Any], count: int = 20_000) -> None:
    expected = exact(logits.numpy(), **params) * count
    observed = np.bincount(draws(logits, count, **params), minlength=len(logits))
    assert (observed[expected == 0] == 0).all()
    likely = expected >= 5
    cells = [((observed - expected)[likely] ** 2 / expected[likely]).sum()]
    if expected[~likely].sum() >= 5:
        cells.append((observed - expected)[~likely].sum() ** 2 / expected[~likely].sum())
    freedom = likely.sum() + len(cells) - 2
    assert sum(cells) < freedom + 5 * math.sqrt(2 * freedom) + 5


def test_draws_over_a_large_vocabulary_follow_the_exact_distribution() -> None:
    """Most blocks are out of the race by their largest logit alone: the sums over groups of tokens tell whether rightly so."""
    logits = random_logits(1, 5000)[0]
    count, group = 20_000, np.argsort(logits.numpy()) // 50
    expected = np.bincount(group, weights=exact(logits.numpy())) * count
    observed = np.bincount(group[draws(logits, count)], minlength=100)
    assert ((observed - expected) ** 2 / np.maximum(expected, 5)).sum() < 100 + 5 * math.sqrt(200)


@settings(deadline=None, max_examples=300)
@given(
    logits=st.lists(st.one_of(st.integers(-3, 3), st.floats(-20, 20, width=32)), min_size=1, max_size=VOCAB),
    temperature=st.floats(1e-3, 2),
    top_k=st.integers(-1, VOCAB + 5),
    top_p=st.floats(1e-6, 1),
    min_p=st.floats(0, 1),
)
@example(logits=[0, -2e-19, 0], temperature=1.0, top_k=0, top_p=0.5, min_p=0.0)
def test_filters_keep_exactly_the_tokens_that_they_should(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """top_p keeps the smallest set that reaches p; ties go by id."""
    row = np.array(logits, np.float32)
    filters = {"temperature": temperature, "top_k": top_k, "min_p": min_p}
    assume(not on_a_boundary(row, top_p, **filters))
    ratios = exact(row, temperature=temperature) / exact(row, temperature=temperature).max()
    assume((np.abs(ratios - min_p) > 1e-6 * min_p).all() or min_p in (0, 1))
    expected = exact(row, top_p=top_p, **filters)
    asked = chunk(logprobs=-1, top_p=top_p, **filters)
    tokens, (told,) = told_by(Sampler("processed_logprobs")(torch.tensor(row)[None], (asked,)))
    values = np.full(len(row), -np.inf)
    for token, value in told.rows()[0][1:]:
        values[token] = value
    if not asked.params.greedy:
        # A float32 cannot hold a probability below e^-87.
        assert ((values > -80) == (expected > 1e-35)).all()
        np.testing.assert_allclose(np.exp(values), expected, atol=2e-5)
    assert expected[tokens[0]] > 0


def told_by(sampled: Sampled) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    assert sampled.logprobs is not None
    return sampled.tokens, sampled.logprobs


@pytest.mark.parametrize("temperature", [0, 1e-8, 1e-5, 1e-4, 1e-2, 0.1, 1.0, 2.0])
def test_every_combination_of_filters_draws_from_what_it_keeps(temperature: float) -> None:
    logits = random_logits(1, VOCAB)[0]
    grid = itertools.product((-1, 0, 1, VOCAB, VOCAB + 5, 20), (1e-6, 0.5, 0.8, 1), (0, 0.5, 1))
    for top_k, top_p, min_p in grid:
        filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
        kept = np.flatnonzero(exact(logits.numpy(), temperature=max(temperature, 1e-9), **filters))
        assert set(draws(logits, 200, temperature=temperature, **filters)) <= set(kept.tolist())


@pytest.mark.parametrize("off", [{"top_k": -1}, {"top_k": VOCAB}, {"top_k": VOCAB + 5}, {"top_p": 1.0}, {"min_p": 0.0}], ids=str)
def test_a_filter_that_is_off_changes_nothing(off: dict[str, Any]) -> None:
    logits = random_logits(1, VOCAB)[0]
    assert draws(logits, 200, temperature=2.0, **off) == draws(logits, 200, temperature=2.0)


@pytest.mark.parametrize("params", [{"top_p": 0.5}, {"top_p": 0.5, "top_k": 4000}, {"top_k": 2000}], ids=str)
def test_what_is_kept_of_a_flat_distribution_is_found(params: dict[str, Any]) -> None:
    """More tokens than there are blocks."""
    logits = torch.linspace(0, 0.1, 5000)
    chosen = set(draws(logits, 1500, **params))
    allowed = set(np.flatnonzero(exact(logits.numpy(), **params)).tolist())
    assert chosen <= allowed
    assert len(chosen) > 900


def neighbours(count: int) -> list[Chunk]:
    """Requests of every kind."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"top_k": 3, "logprobs": 2},
        {"top_p": 0.4},
        {"min_p": 0.3, "mask": bits(range(0, VOCAB, 2), VOCAB)},
        {"presence_penalty": 2.0, "repetition_penalty": 1.5, "history": list(range(40)), "num_prompt": 20},
        {"logit_bias": {3: 100.0}, "banned": (5, 6)},
    ]
    return [chunk(i, i, **kinds[i % len(kinds)]) for i in range(count)]


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 2**63 - 1),
    index=st.integers(0, 10_000),
    temperature=st.floats(0, 2),
    top_k=st.integers(-1, VOCAB + 5),
    top_p=st.floats(1e-6, 1),
    min_p=st.floats(0, 0.5),
    presence=st.floats(-2, 2),
    place=st.integers(0, 6),
    mode=st.sampled_from(["raw_logprobs", "processed_logprobs"]),
)
def test_a_draw_ignores_its_neighbours(
    seed: int, index: int, temperature: float, top_k: int, top_p: float, min_p: float, presence: float, place: int, mode: str
) -> None:
    """Bit for bit, tokens and logprobs; and what is told of a token does not change which it is."""
    asked = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "presence_penalty": presence}
    mine = chunk(seed, index, history=(1, 2, 2), num_prompt=1, logprobs=3, **asked)
    rows = random_logits(7, VOCAB, seed=2)
    logits = rows[place : place + 1].clone()
    others = neighbours(6)
    tokens, told = told_by(Sampler(mode)(rows, (*others[:place], mine, *others[place:])))
    alone, told_alone = told_by(Sampler(mode)(logits.clone(), (mine,)))
    assert (tokens[place], told[place]) == (alone[0], told_alone[0])
    assert sample(logits, (chunk(seed, index, history=(1, 2, 2), num_prompt=1, **asked),)) == Sampled(alone)


@pytest.fixture
def threads() -> Iterator[None]:
    """Puts their number back."""
    yield
    use_threads(1)


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_changes_nothing() -> None:
    chunks = tuple(neighbours(30))
    use_threads(1)
    one = sample(random_logits(30, VOCAB), chunks)
    use_threads(2)
    assert sample(random_logits(30, VOCAB), chunks) == one


def test_seed_and_index_both_change_the_draw() -> None:
    flat = torch.zeros(50, 1000)
    by_seed = sample(flat.clone(), tuple(chunk(seed, 0) for seed in range(50))).tokens
    by_index = sample(flat.clone(), tuple(chunk(0, index) for index in range(50))).tokens
    assert len(set(by_seed)) > 40
    assert len(set(by_index)) > 40
    assert sample(flat.clone(), tuple(chunk(seed, 0) for seed in range(50))).tokens == by_seed


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"top_k": 100}, {"min_p": 0.01}], ids=str)
def test_rounding_hardly_ever_changes_a_draw(params: dict[str, Any]) -> None:
    """What the batch does to float32 logits must not reach the tokens of a seeded request."""
    logits = random_logits(1, vocab=50_000)[0]
    shaken = logits + 2e-6 * torch.randn(50_000, generator=torch.Generator().manual_seed(1))
    assert draws(logits, 100, **params) == draws(shaken, 100, **params)


def test_keys_of_neighbouring_seeds_are_unrelated() -> None:
    """The choices of one request have seeds i, i + 1, …; their draws must not be shifted copies of each other."""
    numbers = np.arange(64, dtype=np.uint64)
    table = np.array([[noise_key(seed, index) * 2.0**-64 for index in numbers] for seed in numbers])
    assert len(np.unique(table)) == table.size
    assert table.min() >= 0 and table.max() < 1
    assert abs(table.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(table).ravel()[1:64]).max() < 0.6
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.08


@pytest.mark.parametrize(
    "params",
    [
        *({"temperature": t} for t in (0, 1e-8, 1e-6, 1e-5, 1e-4)),
        {"top_k": 1, "temperature": 2.0},
        {"top_k": 1, "top_p": 0.8},
        {"top_p": 1e-6},
        {"min_p": 1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [1.0, 1e4, 1e37])
def test_small_values_mean_the_likeliest(params: dict[str, Any], spread: float) -> None:
    logits = spread * random_logits(1, VOCAB)[0]
    assert set(draws(logits, 50, **params)) == {int(logits.argmax())}


def test_greedy_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, [70, 71, 140]] = 3.0
    logits[1] = -0.0
    logits[1, 9] = 0.0
    assert sample(logits, (chunk(temperature=0), chunk(top_k=1))).tokens == (70, 0)


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 3}, {"banned": (7,)}, {"mask": bits([1], VOCAB)}], ids=str)
@pytest.mark.parametrize("broken", [math.nan, -math.nan, math.inf])
def test_broken_logits_are_an_error(params: dict[str, Any], broken: float) -> None:
    logits = random_logits(2, VOCAB)
    logits[1, 7] = broken
    with pytest.raises(RuntimeError, match=r"request 'r', output 3: the largest logit is (nan|inf)"):
        sample(logits, (chunk(), chunk(index=3, **params)))


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.5}], ids=str)
def test_logits_that_the_model_itself_forbids_are_none(params: dict[str, Any]) -> None:
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, [7, 90]] = torch.tensor([1.0, 3.0])
    assert set(draws(logits[0], 100, **params)) <= {7, 90}


def test_sums_that_overflow_are_no_broken_logits() -> None:
    assert sample(torch.full((1, VOCAB), 3e38), (chunk(temperature=0),)).tokens == (0,)


def test_nothing_to_sample() -> None:
    assert sample(torch.empty(0, VOCAB), ()) == Sampled(())
