"""Attention of a step, on both of its paths, against a mask worked out for each query."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import Line, lines

from mqlab.model.attention import LONG_CHUNK, Attention, AttentionRule
from mqlab.model.batch import BatchTensors
from mqlab.model.kv import LayerCache
from mqlab.plan import Plan

BLOCK = 16
SIZE = 16
HEADS, KV_HEADS = 6, 2
NO_ROPE = torch.empty(1024, 0)
WINDOWS = [1, 2, 15, 16, 17, 64]


def reference(qkv: torch.Tensor, rule: AttentionRule) -> torch.Tensor:
    """[T, (H + 2 KV heads) D] -> [T, H D] float64: every query of a whole sequence at once, under its mask."""
    heads = qkv.double().unflatten(1, (-1, SIZE)).transpose(0, 1)
    q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS])
    k, v = (kv.repeat_interleave(HEADS // KV_HEADS, 0) for kv in (k, v))
    scores = q @ k.mT * rule.scale
    scores = rule.softcap * (scores / rule.softcap).tanh() if rule.softcap else scores
    seen = torch.tensor(
        [[key <= query and (not rule.window or query - key < rule.window) for key in range(len(qkv))] for query in range(len(qkv))]
    )
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v).transpose(0, 1).flatten(1)


def empty_cache(blocks: int) -> LayerCache:
    """Filled with NaN, so that reading what was never written shows."""
    keys, values = (torch.full((blocks, KV_HEADS, BLOCK, SIZE), torch.nan) for _ in range(2))
    return LayerCache(keys, values, keys.numpy(), values.numpy())


def make(length: int, seed: int = 0) -> tuple[Line, torch.Tensor, LayerCache]:
    """A sequence whose blocks lie in any order, its projections, and a cache."""
    blocks = -(-length // BLOCK) + 2
    (line,) = lines([range(length)], random.Random(seed).sample(range(blocks), blocks), BLOCK)
    return (
        line,
        torch.from_numpy(np.random.default_rng(seed).normal(size=(length, (HEADS + 2 * KV_HEADS) * SIZE))).float() * 2,
        empty_cache(blocks),
    )


def in_steps(line: Line, qkv: torch.Tensor, cache: LayerCache, rule: AttentionRule, ends: list[int]) -> torch.Tensor:
    """A step for each of the chunks that end there."""
    steps = [(start, end, BatchTensors.of(Plan((line.chunk(start, end),)), BLOCK)) for start, end in pairwise([0, *ends])]
    return torch.cat([Attention(batch, NO_ROPE, NO_ROPE, BLOCK)(qkv[start:end], cache, rule) for start, end, batch in steps])


def close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(actual.double(), wanted, atol=2e-5, rtol=0)


def cuts(length: int) -> dict[str, list[int]]:
    """Prefill in one, two and many chunks, the last three tokens decoded."""
    prefill = max(1, length - 3)
    decode = list(range(prefill + 1, length + 1))
    ways = {
        "one": [prefill],
        "two": [-(-prefill // 2), prefill],
        "one token, then the rest": [1, prefill],
        "a long chunk last": [max(1, prefill - LONG_CHUNK), prefill],
        "blocks": [*range(BLOCK, prefill, BLOCK), prefill],
        "odd": [*range(7, prefill, 7), prefill],
        "token by token": list(range(1, prefill + 1)),
    }
    return {name: [*sorted(set(ends)), *decode] for name, ends in ways.items()}


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("window", WINDOWS)
def test_every_cut_at_every_edge_of_a_window_equals_the_mask(window: int, softcap: float) -> None:
    rule = AttentionRule(heads=HEADS, scale=0.3, softcap=softcap, window=window)
    edges = {window + by for by in (-1, 0, 1, BLOCK - 1, BLOCK + 1, LONG_CHUNK, LONG_CHUNK + 1)} | {2 * LONG_CHUNK + 4}
    for length in sorted(edges - {0}):
        line, qkv, _ = make(length)
        wanted = reference(qkv, rule)
        for ends in cuts(length).values():
            close(in_steps(line, qkv, make(length)[2], rule, ends), wanted)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_long_chunk_may_start_anywhere_in_a_block(window: int) -> None:
    rule = AttentionRule(heads=HEADS, scale=0.3, window=window)
    length = 6 * BLOCK + LONG_CHUNK
    line, qkv, _ = make(length)
    wanted = reference(qkv, rule)
    for start in range(5 * BLOCK, 6 * BLOCK + 1):
        close(in_steps(line, qkv, make(length)[2], rule, [start, length]), wanted)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 180),
    st.one_of(st.just(0), st.integers(1, 200)),
    st.sampled_from([0.0, 0.5, 50.0]),
    st.lists(st.integers(1, 179), max_size=4),
    st.integers(0, 1000),
)
def test_any_window_cap_and_cut_equal_the_mask(length: int, window: int, softcap: float, marks: list[int], seed: int) -> None:
    rule = AttentionRule(heads=HEADS, scale=0.3, softcap=softcap, window=window)
    line, qkv, cache = make(length, seed)
    close(in_steps(line, qkv, cache, rule, sorted({mark for mark in marks if mark < length} | {length})), reference(qkv, rule))


@pytest.mark.parametrize("window", [0, 100])
def test_a_chunk_whose_capped_scores_are_made_in_parts(window: int) -> None:
    rule = AttentionRule(heads=HEADS, scale=0.3, softcap=2.0, window=window)
    line, qkv, cache = make(600)
    close(in_steps(line, qkv, cache, rule, [70, 600]), reference(qkv, rule))


def test_layers_of_one_step_may_have_other_windows() -> None:
    """The layout for one window must not be taken for another's."""
    line, qkv, _ = make(150)
    batch = BatchTensors.of(Plan((line.chunk(0, 150),)), BLOCK)
    attention = Attention(batch, NO_ROPE, NO_ROPE, BLOCK)
    for window in (0, 20, 64, 0, 20):
        rule = AttentionRule(heads=HEADS, scale=0.3, window=window)
        close(attention(qkv, make(150)[2], rule), reference(qkv, rule))


def test_a_window_reads_no_block_before_it() -> None:
    """What only earlier queries saw may be gone: a window that slides is what allows to free it."""
    line, qkv, cache = make(200)
    rule = AttentionRule(heads=HEADS, scale=0.3, window=40)
    wanted = reference(qkv, rule)
    in_steps(line, qkv, cache, rule, [100])
    for block in line.blocks[: (100 + 1 - 40) // BLOCK]:
        cache.keys[block] = cache.values[block] = torch.nan
    for start, end in ((100, 190), (190, 199), (199, 200)):
        batch = BatchTensors.of(Plan((line.chunk(start, end),)), BLOCK)
        close(Attention(batch, NO_ROPE, NO_ROPE, BLOCK)(qkv[start:end], cache, rule), wanted[start:end])
