"""A KV cache of more than 2**31 elements, as a large GPU's memory holds: offsets into it are int64 in every kernel.

Nothing but the blocks in use is ever touched, so the pool takes addresses and no memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from mqlab_kernels.paged_decode import paged_decode, paged_decode_reference
from mqlab_kernels.prefill_attention import prefill_attention, prefill_attention_reference
from mqlab_kernels.qkv_rope_cache import qkv_rope_cache
from mqlab_kernels.reshape_cache import reshape_and_cache
from torch import Tensor

BLOCK, SIZE = 16, 64
BLOCKS = 2**31 // (BLOCK * SIZE) + 2
FAR, NEAR = BLOCKS - 1, 0
"""In int32 the offset of FAR would wrap to somewhere before the pool."""

SLOTS = torch.tensor([FAR * BLOCK + 5, NEAR * BLOCK + 3])
TABLE = torch.tensor([[FAR, NEAR]], dtype=torch.int32)
CONTEXT = torch.tensor([20], dtype=torch.int32)


@pytest.fixture
def pool() -> Iterator[Tensor]:
    """[blocks, 1, BLOCK, SIZE] of keys, and of values too."""
    pool = torch.empty(BLOCKS, 1, BLOCK, SIZE, dtype=torch.float16)
    pool[[FAR, NEAR]] = torch.randn(2, 1, BLOCK, SIZE, generator=torch.Generator().manual_seed(0)).half()
    yield pool


def queries(count: int) -> Tensor:
    return torch.randn(count, 3, SIZE, generator=torch.Generator().manual_seed(1)).half()


def test_decode_reads_far_blocks(pool: Tensor) -> None:
    arguments = queries(1), pool, pool, TABLE, CONTEXT
    wanted = paged_decode_reference(*arguments, scale=0.125)
    torch.testing.assert_close(paged_decode(*arguments, scale=0.125).double(), wanted, rtol=2e-3, atol=2e-3)


def test_prefill_reads_far_blocks(pool: Tensor) -> None:
    arguments = queries(4), pool, pool, TABLE, torch.tensor([0, 4], dtype=torch.int32), CONTEXT
    wanted = prefill_attention_reference(*arguments, max_query=4, scale=0.125)
    torch.testing.assert_close(prefill_attention(*arguments, max_query=4, scale=0.125).double(), wanted, rtol=2e-3, atol=2e-3)


def test_keys_and_values_are_written_to_far_blocks(pool: Tensor) -> None:
    k = queries(2)[:, :1]
    reshape_and_cache(k, k, pool, pool, SLOTS)
    assert torch.equal(pool[[FAR, NEAR], 0, [5, 3]], k[:, 0])


def test_what_was_rotated_is_written_to_far_blocks(pool: Tensor) -> None:
    qkv = queries(2).view(2, 3 * SIZE)
    still = torch.ones(1, SIZE // 2), torch.zeros(1, SIZE // 2)
    qkv_rope_cache(qkv, *still, torch.zeros(2, dtype=torch.int64), SLOTS, pool, pool, heads=1)
    assert torch.equal(pool[[FAR, NEAR], 0, [5, 3]], qkv[:, 2 * SIZE :])
