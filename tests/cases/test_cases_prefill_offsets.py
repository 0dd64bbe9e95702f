"""Blocks whose place in the pool passes 2**31 elements are written by the fused kernel and read by prefill as any other (C81)."""

from __future__ import annotations

import pytest
import torch
from far_pools import BLOCK, FAR, KV_HEADS, SIZE, far_pools
from mqlab_kernels.prefill_attention import prefill_attention
from mqlab_kernels.qkv_rope_cache import qkv_rope_cache
from paged_kv import slots_of, uniform
from torch import Tensor

HEADS, TOKENS = 4, 33


@pytest.mark.parametrize("far", FAR.values(), ids=FAR.keys())
def test_high_blocks_equal_low_ones(far: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = far_pools(monkeypatch)
    qkv = uniform((TOKENS, (HEADS + 2 * KV_HEADS) * SIZE), torch.Generator().manual_seed(0)).bfloat16()
    high, low = (store_and_attend(pools, torch.tensor([[base + 2, base, base + 1]], dtype=torch.int32), qkv) for base in (far, 0))
    assert torch.equal(high, low)
    assert high.any(-1).all()


def store_and_attend(pools: tuple[Tensor, Tensor], table: Tensor, qkv: Tensor) -> Tensor:
    """Write a prompt into its blocks, read its values back bit by bit, and attend it."""
    slots = slots_of(table[0], TOKENS, BLOCK)
    angles = torch.arange(TOKENS * SIZE // 2).view(TOKENS, -1).float()
    q = qkv_rope_cache(qkv, angles.cos(), angles.sin(), torch.arange(TOKENS), slots, *pools, heads=HEADS)
    assert torch.equal(pools[1][slots // BLOCK, :, slots % BLOCK], qkv.view(TOKENS, -1, SIZE)[:, -KV_HEADS:])
    starts, contexts = torch.tensor([0, TOKENS], dtype=torch.int32), torch.tensor([TOKENS], dtype=torch.int32)
    return prefill_attention(q, *pools, table, starts, contexts, max_query=TOKENS, scale=0.125)
