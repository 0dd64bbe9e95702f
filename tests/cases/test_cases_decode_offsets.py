"""Blocks whose place in the pool passes 2**31 elements are written and read as any other (C81)."""

from __future__ import annotations

import pytest
import torch
from far_pools import BLOCK, FAR, KV_HEADS, SIZE, far_pools
from mqlab_kernels.paged_decode import paged_decode
from mqlab_kernels.reshape_cache import reshape_and_cache
from paged_kv import slots_of, uniform
from torch import Tensor


@pytest.mark.parametrize("far", FAR.values(), ids=FAR.keys())
def test_high_blocks_equal_low_ones(far: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = far_pools(monkeypatch)
    random = torch.Generator().manual_seed(0)
    k, v = uniform((2, 40, KV_HEADS, SIZE), random).bfloat16()
    q = uniform((1, 6, SIZE), random).bfloat16()
    high, low = (store_and_attend(pools, torch.tensor([[base + 2, base, base + 1]], dtype=torch.int32), k, v, q) for base in (far, 0))
    assert torch.equal(high, low)
    assert high.any(-1).all()


def store_and_attend(pools: tuple[Tensor, Tensor], table: Tensor, k: Tensor, v: Tensor, q: Tensor) -> Tensor:
    """Write tokens [T, KV heads, D] into a sequence's blocks, read them back bit by bit, and attend them."""
    slots = slots_of(table[0], len(k), BLOCK)
    reshape_and_cache(k, v, *pools, slots)
    for pool, tokens in zip(pools, (k, v), strict=True):
        assert torch.equal(pool[slots // BLOCK, :, slots % BLOCK], tokens)
    return paged_decode(q, *pools, table, torch.tensor([len(k)], dtype=torch.int32), scale=0.125)
