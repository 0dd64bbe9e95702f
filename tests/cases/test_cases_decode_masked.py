"""Rows that see nothing give zeros; others are right however much is masked, and scores of 1e4 under a soft cap are no NaN (C70)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mqlab_kernels.paged_decode import paged_decode, paged_decode_reference
from paged_kv import Paged, assert_close, paged, slots_of

CONTEXTS = [0, 1, 65, 0, 200]
"""Padded rows among others: in the first tile, one into the second, over several."""


def decode(case: Paged, **options: Any) -> torch.Tensor:
    answer = paged_decode(*case.arguments, **options)
    options.pop("splits", None)
    assert_close(answer, paged_decode_reference(*case.arguments, **options), absolutely=True)
    return answer


@pytest.mark.parametrize(("dtype", "splits"), [(torch.float32, 1), (torch.float16, 2), (torch.bfloat16, 2)], ids=str)
def test_padded_rows_are_zeros(dtype: torch.dtype, splits: int) -> None:
    case = paged(CONTEXTS, kv_heads=1, group=3, size=80, block=16, dtype=dtype)
    answer = decode(case, scale=0.1, splits=splits)
    assert not answer[[0, 3]].any()
    assert answer[[1, 2, 4]].any(-1).all()


@pytest.mark.parametrize(("window", "splits"), [(3, 1), (3, 2), (70, 1), (140, 2)])
def test_windows_that_leave_tiles_out_or_mask_most_of_one(window: int, splits: int) -> None:
    decode(paged(CONTEXTS, kv_heads=1, group=3, size=64, block=16), scale=0.1, window=window, splits=splits)


@pytest.mark.parametrize(("dtype", "window"), [(torch.float32, 0), (torch.float32, 3), (torch.float16, 0), (torch.bfloat16, 0)], ids=str)
def test_large_scores_under_a_soft_cap(dtype: torch.dtype, window: int) -> None:
    case = paged(CONTEXTS, kv_heads=1, group=3, size=64, block=16, dtype=dtype)
    scores = torch.einsum("shd,nktd->shnt", case.q.float(), case.keys.float().nan_to_num()) * 1000
    assert scores.max() > 1e4
    assert scores.min() < -1e4
    decode(case, scale=1000.0, softcap=30.0, window=window, splits=2)


def test_large_scores_of_one_sign_weigh_all_the_same() -> None:
    case = paged([100], kv_heads=1, group=1, size=64, block=16)
    case.q.fill_(1.0)
    for sign in (1.0, -1.0):
        case.keys.fill_(sign)
        answer = decode(case, scale=1e4 / 64, softcap=30.0)
        slots = slots_of(case.tables[0], 100, 16)
        torch.testing.assert_close(answer[0, 0], case.values[slots // 16, 0, slots % 16].mean(0), atol=1e-5, rtol=0)


def test_large_scores_without_a_cap_leave_one_winner() -> None:
    case = paged([150], kv_heads=1, group=2, size=64, block=16)
    answer = paged_decode(*case.arguments, scale=1000.0, splits=2)
    torch.testing.assert_close(answer.double(), paged_decode_reference(*case.arguments, scale=1000.0), atol=2e-3, rtol=0)
