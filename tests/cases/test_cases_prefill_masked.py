"""Queries that see nothing give zeros; others are right however much is masked, and scores of 1e4 under a soft cap are no NaN (C70)."""

from __future__ import annotations

import pytest
import torch
from chunked_kv import Chunked, attend, check_prefill, chunked
from mqlab_kernels.prefill_attention import prefill_attention
from paged_kv import NOWHERE, assert_close, slots_of

CHUNKS = [(1, 0), (5, 5), (25, 80), (2, 0), (1, 70)]
"""Padded chunks, without a context, among others."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_padded_chunks_are_zeros(dtype: torch.dtype) -> None:
    case = chunked(CHUNKS, kv_heads=1, group=3, size=80, block=16, dtype=dtype)
    answer = attend(case, scale=0.1)
    rows = torch.zeros(34, dtype=torch.bool)
    rows[[0, 31, 32]] = True
    assert not answer[rows].any()
    assert answer[~rows].any(-1).all()


@pytest.mark.parametrize("window", [3, 33, 64])
def test_windows_that_leave_tiles_out_or_mask_most_of_one(window: int) -> None:
    check_prefill(chunked(CHUNKS[1:3], kv_heads=1, group=3, size=64, block=16, dtype=torch.bfloat16), scale=0.1, window=window)


def test_blocks_before_every_window_are_not_read() -> None:
    """They may belong to somebody else by then: an engine gives them back."""
    case = chunked([(20, 250), (1, 200)], kv_heads=1, group=2, size=64, block=16, dtype=torch.float16)
    expected = attend(case, scale=0.1, window=30)
    case.tables[0, : (250 - 20 + 1 - 30) // 16] = NOWHERE
    case.tables[1, : (200 - 30) // 16] = NOWHERE
    torch.testing.assert_close(attend(case, scale=0.1, window=30), expected, atol=0, rtol=0)


@pytest.mark.parametrize(("dtype", "window"), [(torch.float32, 0), (torch.float16, 0), (torch.bfloat16, 7)], ids=str)
def test_large_scores_under_a_soft_cap(dtype: torch.dtype, window: int) -> None:
    case = chunked(CHUNKS[1:3], kv_heads=1, group=3, size=64, block=16, dtype=dtype)
    scores = torch.einsum("shd,nktd->shnt", case.q.float(), case.keys.float().nan_to_num()) * 1000
    assert scores.max() > 1e4
    assert scores.min() < -1e4
    check_prefill(case, scale=1000.0, softcap=30.0, window=window, absolutely=True)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_large_scores_of_one_sign_weigh_all_the_same(sign: float) -> None:
    case = chunked([(3, 100)], kv_heads=1, group=1, size=64, block=16)
    case.q.fill_(1.0)
    case.keys.fill_(sign)
    answer = attend(case, scale=1e4 / 64, softcap=30.0)
    slots = slots_of(case.tables[0], 100, 16)
    values = case.values[slots // 16, 0, slots % 16]
    assert_close(answer[:, 0], torch.stack([values[:seen].double().mean(0) for seen in (98, 99, 100)]))


def test_what_lies_in_slots_of_no_token_counts_nothing() -> None:
    case = chunked([(9, 9)], kv_heads=1, group=2, size=32, block=16)
    expected = attend(case, scale=0.1)
    for rubbish in (torch.inf, -torch.inf, 1e30):
        other = Chunked(case.q, case.keys.nan_to_num(rubbish), case.values.nan_to_num(rubbish), *case.arguments[3:])
        torch.testing.assert_close(prefill_attention(*other.arguments, max_query=9, scale=0.1), expected, atol=0, rtol=0)
