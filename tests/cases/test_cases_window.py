"""A sliding window is the same for a prompt in one, two and many chunks, and for the decode after it (C82)."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from chunked_kv import Chunked, attend, chunked
from mqlab_kernels.paged_decode import paged_decode
from paged_kv import assert_close
from torch import Tensor

WINDOWS = [1, 2, 15, 16, 17, 64]
SCALE = 0.3
STEPS = 3
"""Tokens that are decoded after the prompt."""


@pytest.mark.parametrize("window", WINDOWS)
def test_chunks_and_decode_equal_a_mask_for_each_query(window: int) -> None:
    prompt = 97
    whole = chunked([(prompt + STEPS, prompt + STEPS)], kv_heads=1, group=3, size=32, block=16, dtype=torch.float16, seed=window)
    expected = masked(whole, window)
    for cuts in ([], [41], [16, 32, 33, 34, 64, 96]):
        assert_close(in_chunks(whole, [0, *cuts, prompt], window), expected[:prompt])
    assert_close(decoded(whole, prompt, window), expected[prompt:])


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", WINDOWS)
def test_contexts_around_the_window(window: int, dtype: torch.dtype) -> None:
    for prompt in sorted({1, window - 1, window, window + 1, 2 * window + 1, 130} - {0}):
        whole = chunked([(prompt + STEPS, prompt + STEPS)], kv_heads=2, group=2, size=48, block=8, dtype=dtype, seed=prompt)
        expected = masked(whole, window)
        for cuts in ([], [prompt // 2], list(range(7, prompt, 7)), list(range(1, prompt))):
            assert_close(in_chunks(whole, sorted({0, *cuts, prompt}), window), expected[:prompt])
        assert_close(decoded(whole, prompt, window), expected[prompt:])


def in_chunks(whole: Chunked, edges: list[int], window: int) -> Tensor:
    """The prompt between these edges, one step after the other."""
    parts = [whole.only(0, first, last) for first, last in pairwise(edges)]
    return torch.cat([attend(part, scale=SCALE, window=window) for part in parts])


def decoded(whole: Chunked, prompt: int, window: int) -> Tensor:
    """The tokens after the prompt, each a row of a decode step."""
    contexts = torch.arange(prompt + 1, prompt + 1 + STEPS, dtype=torch.int32)
    tables = whole.tables.repeat(STEPS, 1)
    return paged_decode(whole.q[prompt:], whole.keys, whole.values, tables, contexts, scale=SCALE, window=window)


def masked(whole: Chunked, window: int) -> Tensor:
    """Attention of one prompt with one mask, query by key: [T, H, D] float64."""
    tokens, heads = whole.q.shape[:2]
    block, kv_heads = whole.keys.shape[2], whole.keys.shape[1]
    places = torch.arange(tokens)
    blocks = whole.tables[0, places // block].long()
    pools = (pool[blocks, :, places % block].double() for pool in (whole.keys, whole.values))
    key, value = (pool.repeat_interleave(heads // kv_heads, 1) for pool in pools)
    scores = torch.einsum("shd,thd->hst", whole.q.double(), key) * SCALE
    distance = places[:, None] - places[None, :]
    scores = scores.masked_fill((distance < 0) | (distance >= window), -torch.inf)
    return torch.einsum("hst,thd->shd", scores.softmax(-1), value)
