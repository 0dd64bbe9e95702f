"""Draws: what they depend on, and how they are distributed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlab.model.sampler import noise_key, sample
from mqlab.plan import Chunk
from mqlab.types import SamplingParams

VOCAB = 12


def chunk(seed: int = 0, index: int = 0, banned: tuple[int, ...] = (), **params: Any) -> Chunk:
    return Chunk("r", (0,), 0, (0,), True, SamplingParams(**params), seed, index, banned)


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def draws(logits: torch.Tensor, count: int, banned: tuple[int, ...] = (), **params: Any) -> list[int]:
    """``count`` draws of one row, as the tokens of one request."""
    chunks = tuple(chunk(seed=42, index=i, banned=banned, **params) for i in range(count))
    return list(sample(logits.expand(count, -1).clone(), chunks))


def exact(logits: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """The distribution by its definition: top_k, then top_p on what is left."""
    scaled = logits.double().numpy() / temperature
    order = np.argsort(-scaled, kind="stable")
    keep = order[: top_k if top_k > 0 else None]
    p = np.exp(scaled[keep] - scaled.max())
    p /= p.sum()
    count = int(np.searchsorted(np.cumsum(p), top_p)) + 1
    out = np.zeros(len(scaled))
    out[keep[:count]] = p[:count] / p[:count].sum()
    return out


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_k": VOCAB + 5},
        {"top_k": -1},
        {"top_p": 0.7},
        {"top_p": 0.999},
        {"top_k": 5, "top_p": 0.8, "temperature": 1.3},
    ],
    ids=str,
)
def test_draws_follow_the_exact_distribution(params: dict[str, Any]) -> None:
    logits, count = random_logits(1)[0], 4000
    expected = exact(logits, **params) * count
    observed = np.bincount(draws(logits, count, **params), minlength=VOCAB)
    assert (observed[expected == 0] == 0).all()
    likely = expected >= 5
    chi2 = ((observed - expected)[likely] ** 2 / expected[likely]).sum()
    freedom = likely.sum() - 1
    assert chi2 < freedom + 6 * math.sqrt(2 * freedom) + 10


def test_the_nucleus_is_found_in_a_flat_distribution() -> None:
    """Longer than what is sorted at first."""
    logits = torch.linspace(0, 0.1, 5000)
    chosen = set(draws(logits, 1500, top_p=0.5))
    allowed = set(np.flatnonzero(exact(logits, top_p=0.5)).tolist())
    assert chosen <= allowed
    assert len(chosen) > 1000


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 2**63 - 1),
    index=st.integers(0, 10_000),
    temperature=st.floats(0, 2),
    top_k=st.integers(-1, VOCAB + 5),
    top_p=st.floats(1e-6, 1),
    place=st.integers(0, 6),
)
def test_a_draw_ignores_its_neighbours(seed: int, index: int, temperature: float, top_k: int, top_p: float, place: int) -> None:
    mine = chunk(seed, index, temperature=temperature, top_k=top_k, top_p=top_p)
    logits = random_logits(1, seed=1)
    alone = sample(logits.clone(), (mine,))
    others = [chunk(i, i, temperature=i / 4, top_k=i, top_p=1 - i / 10) for i in range(6)]
    batch = (*others[:place], mine, *others[place:])
    rows = random_logits(7, seed=2)
    rows[place] = logits[0]
    assert sample(rows, batch)[place] == alone[0]


def test_seed_and_index_both_change_the_draw() -> None:
    flat = torch.zeros(1, 1000)
    by_seed = {sample(flat.clone(), (chunk(seed, 0),)) for seed in range(50)}
    by_index = {sample(flat.clone(), (chunk(0, index),)) for index in range(50)}
    assert len(by_seed) > 40
    assert len(by_index) > 40


def test_rounding_hardly_ever_changes_a_draw() -> None:
    """What the batch does to float32 logits must not reach the tokens of a seeded request."""
    logits = random_logits(1, vocab=50_000)[0]
    shaken = logits + 2e-6 * torch.randn(50_000, generator=torch.Generator().manual_seed(1))
    assert draws(logits, 300) == draws(shaken, 300)


def test_keys_of_neighbouring_seeds_are_unrelated() -> None:
    """The choices of one request have seeds i, i + 1, …; their draws must not be shifted copies of each other."""
    table = np.array([[noise_key(seed, index) * 2.0**-64 for index in range(64)] for seed in range(64)])
    assert len(np.unique(table)) == table.size
    assert table.min() >= 0 and table.max() < 1
    assert abs(table.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(table).ravel()[1:64]).max() < 0.6
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.08


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 1e-6}, {"top_k": 1, "temperature": 2.0}, {"top_p": 1e-6}, {"temperature": 1e-4}]
)
@pytest.mark.parametrize("spread", [1.0, 1e4])
def test_small_values_mean_the_likeliest(params: dict[str, Any], spread: float) -> None:
    logits = spread * random_logits(1)[0]
    assert set(draws(logits, 50, **params)) == {int(logits.argmax())}


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 2}, {"top_p": 0.9}], ids=str)
def test_banned_tokens_never_appear(params: dict[str, Any]) -> None:
    logits = random_logits(1)[0]
    banned = tuple(logits.topk(3).indices.tolist())
    assert not set(draws(logits, 200, banned=banned, **params)) & set(banned)


def test_greedy_ties_go_to_the_lowest_id() -> None:
    assert sample(torch.tensor([[1.0, 3.0, 3.0]]), (chunk(temperature=0),)) == (1,)


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 3}], ids=str)
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_broken_logits_are_an_error(params: dict[str, Any], broken: float) -> None:
    logits = random_logits(2)
    logits[1, 7] = broken
    with pytest.raises(RuntimeError, match=r"request 'r', output 3: the largest logit is (nan|inf)"):
        sample(logits, (chunk(), chunk(index=3, **params)))


def test_banning_everything_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="every token was banned"):
        sample(random_logits(1), (chunk(banned=tuple(range(VOCAB))),))


def test_nothing_to_sample() -> None:
    assert sample(torch.empty(0, VOCAB), ()) == ()
