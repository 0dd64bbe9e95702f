"""The device's sampler against the CPU's: the same tokens and logprobs, whoever is in the batch, round by round."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from sampling import bits, chunk, random_logits

from mqlab.model.accel import sampler as module
from mqlab.model.accel.sampler import DeviceSampler
from mqlab.model.sampler import Sampled, Sampler
from mqlab.plan import Chunk

VOCAB = 150
MAX_ROWS = 48

Make = Callable[..., DeviceSampler]


@pytest.fixture(params=["kernel", "torch", "cpu"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A sampler that draws with the Triton kernel, with plain torch as on a GPU without it, or with the CPU's kernels."""
    if request.param == "torch":
        monkeypatch.setattr(DeviceSampler, "_by_cpu", DeviceSampler._by_torch)
        monkeypatch.setattr(module, "_AT_ONCE", 4 * VOCAB)
    backend = "triton" if request.param == "kernel" else "torch"
    return lambda mode="raw_logprobs": DeviceSampler(MAX_ROWS, VOCAB, torch.device("cpu"), backend, mode)


PLAIN: list[dict[str, Any]] = [{"temperature": 0}, {}, {"top_k": 3, "temperature": 0.6}, {"top_p": 0.4}, {"min_p": 0.3}, {"top_k": 1}]
STEERED: list[dict[str, Any]] = [
    {"top_k": 3, "logprobs": 2},
    {"logprobs": 0, "temperature": 0},
    {"min_p": 0.3, "mask": bits(range(0, VOCAB, 2), VOCAB)},
    {"presence_penalty": 2.0, "repetition_penalty": 1.5, "history": list(range(40)), "num_prompt": 20},
    {"logit_bias": {3: 100.0}, "banned": (5, 6)},
    {"banned": (1, 2), "logprobs": 1},
    {"mask": bits([], VOCAB), "logprobs": 1},
]


def batch(kinds: list[dict[str, Any]], rows: int, seed: int = 0) -> tuple[Chunk, ...]:
    order = np.random.default_rng(seed).integers(len(kinds), size=rows)
    return tuple(chunk(100 * seed + row, row % 3, **kinds[kind]) for row, kind in enumerate(order))


def drawn(sampler: DeviceSampler, logits: torch.Tensor, chunks: tuple[Chunk, ...]) -> Sampled:
    draw = sampler.prepare(chunks)
    return sampler.finish(draw, sampler.draw(logits, draw).tolist())


@pytest.mark.parametrize(
    ("kinds", "mode"),
    [(PLAIN, "raw_logprobs"), (PLAIN + STEERED, "raw_logprobs"), (PLAIN + STEERED, "processed_logprobs"), (STEERED, "raw_logprobs")],
    ids=["plain", "mixed", "mixed, processed", "steered"],
)
def test_batches_of_all_kinds_draw_what_the_cpu_draws(make: Make, kinds: list[dict[str, Any]], mode: str) -> None:
    """One batch after the other, of different sizes, with rows of padding behind."""
    sampler = make(mode)
    for seed, rows in enumerate((7, 1, 9)):
        chunks, logits = batch(kinds, rows, seed), random_logits(rows + 2, VOCAB, seed)
        before = logits.clone()
        assert drawn(sampler, logits, chunks) == Sampler(mode)(logits[:rows].clone(), chunks)
        assert torch.equal(logits, before)


def test_only_rows_that_steer_or_want_logprobs_need_the_host(make: Make) -> None:
    sampler = make()
    assert all(sampler.prepare((chunk(**kind), chunk(presence_penalty=1.0))).on_device for kind in PLAIN)
    assert not any(sampler.prepare((chunk(), chunk(**kind))).on_device for kind in STEERED)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(20))
def test_many_batches_draw_what_the_cpu_draws(make: Make, seed: int) -> None:
    chunks, logits = batch(PLAIN + STEERED, MAX_ROWS, seed), random_logits(MAX_ROWS, VOCAB, seed)
    assert drawn(make(), logits, chunks) == Sampler()(logits.clone(), chunks)


def test_a_batch_draws_by_itself_what_its_rows_draw_with_others(make: Make) -> None:
    """Parameters of rows that were there before are forgotten."""
    sampler, chunks, logits = make(), batch(PLAIN, 6), random_logits(6, VOCAB)
    every = drawn(sampler, logits, chunks).tokens
    assert drawn(sampler, logits[::2].contiguous(), chunks[::2]).tokens == every[::2]
    assert drawn(sampler, logits, chunks).tokens == every


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("kinds", [PLAIN, PLAIN + STEERED], ids=["plain", "mixed"])
def test_rounds_draw_what_single_draws_do(make: Make, kinds: list[dict[str, Any]], counted: bool) -> None:
    """Bans hold for as many rounds as they say; rows whose rounds are over are drawn from whatever there is."""
    sampler = make()
    first = tuple(
        msgspec.structs.replace(one, rounds=1 + row % 3, banned_rounds=2 if one.banned else 1) for row, one in enumerate(batch(kinds, 6, 4))
    )
    draw, chunks = sampler.prepare(first), first
    for number in range(3):
        logits = random_logits(6, VOCAB, number)
        expected = Sampler()(logits.clone(), chunks)
        logits[[row for row, one in enumerate(first) if one.rounds <= number]] = math.nan
        told = sampler.finish(draw, sampler.draw(logits, draw).tolist())
        for row, one in enumerate(first):
            if number < one.rounds:
                assert told.tokens[row] == expected.tokens[row]
                assert (told.logprobs and told.logprobs[row]) == (expected.logprobs and expected.logprobs[row])
        if counted:
            sampler.indices += 1
        draw = sampler.next_round(draw, counted)
        chunks = tuple(one.after((token,)) for one, token in zip(chunks, expected.tokens, strict=True))


def test_parameters_stay_where_they_are(make: Make) -> None:
    """A graph that moves the indices on holds their address."""
    sampler = make()
    place = sampler.indices.data_ptr()
    for indices in ([3, 1], [8, 9], [0, 7]):
        sampler.prepare(tuple(chunk(0, index) for index in indices))
        assert sampler.indices.data_ptr() == place
        assert sampler.indices[:2].tolist() == indices


def test_the_next_batch_may_be_prepared_while_the_tokens_of_one_are_on_their_way(make: Make) -> None:
    sampler = make()
    batches = [(batch(PLAIN + STEERED, 3, seed), random_logits(3, VOCAB, seed)) for seed in range(4)]
    draws = [sampler.prepare(batches[0][0])]
    tokens = [sampler.draw(batches[0][1], draws[0])]
    for chunks, logits in batches[1:]:
        draws.append(sampler.prepare(chunks))
        tokens.append(sampler.draw(logits, draws[-1]))
    for (chunks, logits), draw, row in zip(batches, draws, tokens, strict=True):
        assert sampler.finish(draw, row.tolist()) == Sampler()(logits.clone(), chunks)


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.5, "top_k": 9}, {"logprobs": 1}], ids=str)
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_broken_logits_are_the_error_that_the_cpu_raises(make: Make, params: dict[str, Any], broken: float) -> None:
    logits, chunks = random_logits(3, VOCAB), (chunk(), chunk(index=3, **params), chunk())
    logits[1, 7:] = broken
    logits[1, :7] = -math.inf
    with pytest.raises(RuntimeError) as expected:
        Sampler()(logits.clone(), chunks)
    with pytest.raises(RuntimeError) as raised:
        drawn(make(), logits, chunks)
    assert str(raised.value) == str(expected.value)


def test_an_error_of_a_later_round_names_its_output(make: Make) -> None:
    sampler = make()
    draw = sampler.next_round(sampler.prepare((msgspec.structs.replace(chunk(index=3), rounds=2),)))
    with pytest.raises(RuntimeError, match="request 'r', output 4: the largest logit is nan"):
        sampler.finish(draw, sampler.draw(torch.full((1, VOCAB), math.nan), draw).tolist())
