"""Keys and values of a step's tokens into their slots of the paged KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from mqlab_kernels.capability import capability
from mqlab_kernels.kernel import Case, Config, Kernel


@triton.jit(do_not_specialize=["kv_heads"], do_not_specialize_on_alignment=["slots"])
def reshape_cache_kernel(
    k, v, keys, values, slots,
    k_token, k_head, v_token, v_head, block_stride, head_stride, token_stride, kv_heads,
    SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """HEADS heads of one token. Grid: (tokens, ceil(KV heads / HEADS)).

    Constants of the case: SIZE of a head, and that PADDED to a power of two; BLOCK size of the cache. Constant of speed: HEADS.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dims = tl.arange(0, PADDED)
    inside = (head < kv_heads)[:, None] & (dims < SIZE)[None, :]
    key = tl.load(k + token * k_token + head[:, None] * k_head + dims[None, :], mask=inside)
    value = tl.load(v + token * v_token + head[:, None] * v_head + dims[None, :], mask=inside)
    # A cache may have more than 2**31 elements; slots are int64, and so is what follows from them.
    place = slot // BLOCK * block_stride + slot % BLOCK * token_stride
    offsets = place + head.to(tl.int64)[:, None] * head_stride + dims[None, :]
    tl.store(keys + offsets, key.to(keys.dtype.element_ty), mask=inside)
    tl.store(values + offsets, value.to(values.dtype.element_ty), mask=inside)


def reshape_and_cache(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Store each token's key and value heads in its slot, in place.

    Args:
        k: [T, KV heads, D] bfloat16, float16 or float32, contiguous in D; ``v`` likewise. Views of fused projections will do.
        keys: [blocks, KV heads, block size, D]; ``values`` likewise, with the same strides. Another dtype than k's is converted to.
        slots: [T] int64, block * block size + offset; -1 skips the token.

    Raises:
        ValueError: shapes or strides that do not fit.
    """
    _check(k, v, keys, values)
    if not len(slots):
        return
    _, kv_heads, block, size = keys.shape
    constants = {"SIZE": size, "PADDED": triton.next_power_of_2(size), "BLOCK": block}
    config = choose(constants, capability(k.device))
    grid = (len(slots), triton.cdiv(kv_heads, config.constants["HEADS"]))
    strides = (*k.stride()[:2], *v.stride()[:2], *keys.stride()[:3])
    reshape_cache_kernel[grid](k, v, keys, values, slots, *strides, kv_heads=kv_heads, **constants, **config.options)


def _check(k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> None:
    if k.shape != v.shape or keys.shape != values.shape or k.shape[1:] != (keys.shape[1], keys.shape[3]):
        sizes = f"k {list(k.shape)}, v {list(v.shape)}, keys {list(keys.shape)}, values {list(values.shape)}"
        raise ValueError(f"{sizes}: k and v must be [T, KV heads, D], keys and values [blocks, KV heads, block size, D]")
    if keys.stride() != values.stride() or any(tensor.stride(-1) != 1 for tensor in (k, v, keys, values)):
        raise ValueError("keys and values must have the same strides, and the last dimension of each tensor the stride 1")


def reshape_and_cache_reference(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """The same by indexing; nothing is computed, so it is exact in any dtype."""
    block = keys.shape[2]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            keys[slot // block, :, slot % block] = k[token].to(keys.dtype)
            values[slot // block, :, slot % block] = v[token].to(values.dtype)


_SHAPES = ((1, 1), (4, 1), (4, 2), (8, 4), (16, 4))
SWEEP = tuple(Config(constants={"HEADS": heads}, num_warps=warps, num_stages=1) for heads, warps in _SHAPES)


def choose(constants: Mapping[str, Any], capability: int) -> Config:
    """Eight heads of 128 are 16 bytes for each thread of four warps."""
    return SWEEP[3 if constants["PADDED"] >= 128 else 4]


_STRIDES = ("k_token", "k_head", "v_token", "v_head", "block_stride", "head_stride", "token_stride")


def _case(dtype: str, size: int, block: int) -> Case:
    types = {**dict.fromkeys(("k", "v", "keys", "values"), f"*{dtype}"), "slots": "*i64", **dict.fromkeys((*_STRIDES, "kv_heads"), "i32")}
    return Case(
        name=f"head {size} {dtype}, blocks of {block}",
        types=types,
        constants={"SIZE": size, "PADDED": triton.next_power_of_2(size), "BLOCK": block},
        aligned=("k", "v", "keys", "values", *_STRIDES),
    )


CASES = (
    *(_case("bf16", size, 16) for size in (128, 32, 64, 80, 96, 112, 192, 256)),
    *(_case("bf16", 128, block) for block in (1, 8, 32, 48)),
    _case("fp16", 128, 16),
    _case("fp32", 128, 16),
)

KERNELS = (Kernel(name="reshape_cache", function=reshape_cache_kernel, cases=CASES, sweep=SWEEP, choose=choose),)
