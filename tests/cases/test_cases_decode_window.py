"""A sliding window sees exactly its last tokens, itself among them, at every step of a decode (C82)."""

from __future__ import annotations

import pytest
import torch
from mqlab_kernels.paged_decode import paged_decode
from paged_kv import Paged, assert_close, paged
from torch import Tensor

WINDOWS = [1, 2, 15, 16, 17, 64]
SCALE = 0.3


@pytest.mark.parametrize("window", WINDOWS)
def test_contexts_around_the_window(window: int) -> None:
    contexts = sorted({1, window - 1, window, window + 1, 2 * window + 1, 129, 130} - {0})
    case = paged(contexts, kv_heads=1, group=3, size=64, block=16)
    assert_close(paged_decode(*case.arguments, scale=SCALE, window=window, splits=2), masked(case, window))


@pytest.mark.parametrize("window", WINDOWS)
def test_every_step_of_a_decode(window: int) -> None:
    """The steps of one sequence as rows of one batch: all read the same blocks."""
    whole = paged([70], kv_heads=1, group=1, size=32, block=16, seed=window)
    steps = torch.arange(1, 71, 7, dtype=torch.int32)
    case = Paged(whole.q.repeat(len(steps), 1, 1), whole.keys, whole.values, whole.tables.repeat(len(steps), 1), steps)
    assert_close(paged_decode(*case.arguments, scale=SCALE, window=window), masked(case, window))


def masked(case: Paged, window: int) -> Tensor:
    """Attention with a mask for each query over all tokens of its blocks: [S, H, D] float64."""
    block, group = case.keys.shape[2], case.q.shape[1] // case.keys.shape[1]
    out = torch.zeros(case.q.shape, dtype=torch.float64)
    for row, context in enumerate(case.contexts.tolist()):
        places = torch.arange(-(-context // block) * block)
        blocks, offsets = case.tables[row, places // block].long(), places % block
        pools = (pool[blocks, :, offsets].nan_to_num().double() for pool in (case.keys, case.values))
        key, value = (pool.repeat_interleave(group, 1) for pool in pools)
        scores = torch.einsum("hd,nhd->hn", case.q[row].double(), key) * SCALE
        scores[:, (places >= context) | (places <= context - 1 - window)] = -torch.inf
        out[row] = torch.einsum("hn,nhd->hd", scores.softmax(-1), value)
    return out
