"""The write into the paged KV cache, in the interpreter: exactly what indexing writes, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mqlab_kernels.reshape_cache import reshape_and_cache, reshape_and_cache_reference
from torch import Tensor


@dataclass(frozen=True)
class Write:
    """Arguments of a write: k and v are views into a fused projection, the pool is full of other tokens."""

    k: Tensor
    v: Tensor
    keys: Tensor
    values: Tensor
    slots: Tensor


@st.composite
def writes(draw: st.DrawFn) -> Write:
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    kv_heads, size = draw(st.sampled_from([1, 2, 3, 8, 9])), draw(st.sampled_from([16, 40, 64, 80, 96, 112, 128, 192, 256]))
    blocks, block = draw(st.integers(1, 4)), draw(st.sampled_from([1, 3, 16, 48]))
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    tokens = draw(st.integers(0, min(6, blocks * block)))
    fused = torch.randn((tokens, (2 + 2 * kv_heads) * size), generator=random).to(dtype)
    k, v = (part.view(tokens, kv_heads, size) for part in fused[:, 2 * size :].chunk(2, 1))
    keys, values = (torch.randn((blocks, kv_heads, block, size), generator=random).to(dtype) for _ in range(2))
    slots = torch.randperm(blocks * block, generator=random)[:tokens]
    skipped = torch.rand(tokens, generator=random) < 0.3
    return Write(k, v, keys, values, slots.where(~skipped, -1))


def check(write: Write) -> None:
    expected = write.keys.clone(), write.values.clone()
    reshape_and_cache_reference(write.k, write.v, *expected, write.slots)
    reshape_and_cache(write.k, write.v, write.keys, write.values, write.slots)
    assert torch.equal(write.keys, expected[0])
    assert torch.equal(write.values, expected[1])


@settings(deadline=None, max_examples=20, derandomize=True)
@given(writes())
def test_a_write_equals_the_reference(write: Write) -> None:
    check(write)


@pytest.mark.full
@settings(deadline=None, max_examples=300)
@given(writes())
def test_many_writes_equal_the_reference(write: Write) -> None:
    check(write)


def test_a_pool_with_tokens_outermost_is_written_in_place() -> None:
    random = torch.Generator().manual_seed(0)
    keys, values = (torch.zeros(3, 16, 2, 64).transpose(1, 2) for _ in range(2))
    k, v = torch.randn((2, 4, 2, 64), generator=random)
    check(Write(k, v, keys, values, torch.tensor([47, 0, -1, 16])))


def test_a_narrower_pool_takes_what_it_can_hold() -> None:
    k, v = torch.tensor([1.5, -2.25]).view(2, 1, 1, 1).expand(2, 1, 1, 16).contiguous()
    keys, values = (torch.zeros(1, 1, 16, 16, dtype=torch.bfloat16) for _ in range(2))
    check(Write(k, v, keys, values, torch.tensor([3])))
    assert keys[0, 0, 3, 0] == 1.5
    assert values[0, 0, 3, 15] == -2.25


def test_what_does_not_fit_is_refused() -> None:
    k, pool = torch.zeros(2, 3, 64), torch.zeros(4, 3, 16, 64)
    slots = torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"k \[2, 3, 64\], v \[2, 3, 64\], keys \[4, 2, 16, 64\]"):
        reshape_and_cache(k, k, pool[:, :2], pool[:, :2], slots)
    with pytest.raises(ValueError, match="same strides"):
        reshape_and_cache(k, k, pool, torch.zeros(4, 16, 3, 64).transpose(1, 2), slots)
