"""From the fused projections to attention in one pass: queries and keys normed and rotated, keys and values written into the paged cache.

The norm of each head is that of Qwen 3 and Gemma 3; models without it skip its code.
"""

# Triton's functions give several values, of which its types know nothing.
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from mqlab_kernels.capability import capability
from mqlab_kernels.kernel import Case, Config, Kernel
from mqlab_kernels.rotary import check_tables, rotary_reference, rotated


# Where in a larger tensor the batch's integers begin differs from step to step, and must not compile anew.
@triton.jit(do_not_specialize=["heads", "kv_heads"], do_not_specialize_on_alignment=["positions", "slots"])
def qkv_rope_cache_kernel(
    qkv, cos, sin, positions, slots, q_norm, k_norm, q, keys, values,
    heads, kv_heads, qkv_token, q_token, q_head, block_stride, head_stride, token_stride, eps,
    SIZE: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr, REST: tl.constexpr, BLOCK: tl.constexpr, NORMED: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """HEADS heads of one token, of its queries, keys and values in a row.

    Constants of the case: SIZE of a head; HALF of its rotated dimensions, and that PADDED to a power of two; the REST of its dimensions,
    padded likewise, 0 if none; BLOCK size of the cache; NORMED: with a norm of each head.
    """
    token = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_q, is_k = rows < heads, (rows >= heads) & (rows < heads + kv_heads)
    inside = (rows < heads + 2 * kv_heads)[:, None]
    source = qkv + token * qkv_token + rows[:, None] * SIZE
    dims = tl.arange(0, PADDED)
    turned = inside & (dims < HALF)[None, :]
    first = tl.load(source + dims[None, :], mask=turned, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + dims[None, :], mask=turned, other=0.0).to(tl.float32)
    if REST:
        others = 2 * HALF + tl.arange(0, REST)
        kept = inside & (others < SIZE)[None, :]
        rest = tl.load(source + others[None, :], mask=kept, other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        if REST:
            squares += tl.sum(rest * rest, 1)
        scale = tl.rsqrt(squares / SIZE + eps)[:, None]
        first = first * _weight(q_norm, k_norm, scale, dims, dims < HALF, is_q, is_k)
        second = second * _weight(q_norm, k_norm, scale, HALF + dims, dims < HALF, is_q, is_k)
        if REST:
            rest = rest * _weight(q_norm, k_norm, scale, others, others < SIZE, is_q, is_k)

    angle = tl.load(positions + token) * HALF + dims
    turns = (is_q | is_k)[:, None]
    cosines = tl.where(turns, tl.load(cos + angle, mask=dims < HALF, other=0.0)[None, :], 1.0)
    sines = tl.where(turns, tl.load(sin + angle, mask=dims < HALF, other=0.0)[None, :], 0.0)
    first, second = rotated(first, second, cosines, sines)

    slot = tl.load(slots + token)
    place = slot // BLOCK * block_stride + slot % BLOCK * token_stride
    head = tl.where(is_k, rows - heads, rows - heads - kv_heads).to(tl.int64)
    cached = place + head[:, None] * head_stride
    to_q, to_k, to_v = is_q[:, None], is_k[:, None] & (slot >= 0), (rows >= heads + kv_heads)[:, None] & (slot >= 0)
    query = token * q_token + rows[:, None] * q_head
    _put(q + query, keys + cached, values + cached, dims, first, turned, to_q, to_k, to_v)
    _put(q + query, keys + cached, values + cached, HALF + dims, second, turned, to_q, to_k, to_v)
    if REST:
        _put(q + query, keys + cached, values + cached, others, rest, kept, to_q, to_k, to_v)


@triton.jit
def _weight(q_norm, k_norm, scale, dims, inside, is_q, is_k):
    """[HEADS, dims]: by what the norm multiplies; 1 of values."""
    of_q = tl.load(q_norm + dims, mask=inside, other=0.0)[None, :]
    of_k = tl.load(k_norm + dims, mask=inside, other=0.0)[None, :]
    return tl.where(is_q[:, None], scale * of_q, tl.where(is_k[:, None], scale * of_k, 1.0))


@triton.jit
def _put(q, keys, values, dims, x, inside, to_q, to_k, to_v):
    """Each head to where its kind goes."""
    tl.store(q + dims[None, :], x.to(q.dtype.element_ty), mask=inside & to_q)
    tl.store(keys + dims[None, :], x.to(keys.dtype.element_ty), mask=inside & to_k)
    tl.store(values + dims[None, :], x.to(values.dtype.element_ty), mask=inside & to_v)


def qkv_rope_cache(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    out: Tensor | None = None,
) -> Tensor:
    """Norm and rotate queries and keys, store keys and values in their slots.

    Args:
        qkv: [T, (H + 2 * KV heads) * D], queries, keys and values of each token side by side.
        cos: [positions, R/2] float32, contiguous, R <= D; ``sin`` likewise. Dimensions from R on are not rotated.
        positions: [T] int64.
        slots: [T] int64, block * block size + offset; -1 stores nothing.
        keys: [blocks, KV heads, block size, D]; ``values`` likewise, with the same strides.
        heads: H, query heads.
        q_norm: [D] float32, weights of the RMS norm of each query head before its rotation; ``k_norm`` of keys. Both or none.
        eps: of the norms.
        out: [T, H, D], to write to.

    Returns:
        The queries, [T, H, D] in qkv's dtype, or ``out``.

    Raises:
        ValueError: shapes, tables or strides that do not fit.
    """
    tokens, (_, kv_heads, block, size) = qkv.shape[0], keys.shape
    out = qkv.new_empty(tokens, heads, size) if out is None else out
    check_tables(cos, sin, size)
    _check(qkv, keys, values, out, heads, q_norm, k_norm)
    if not tokens:
        return out
    half = cos.shape[1]
    constants: dict[str, Any] = {
        "SIZE": size,
        "HALF": half,
        "PADDED": triton.next_power_of_2(max(1, half)),
        "REST": _padded(size - 2 * half),
        "BLOCK": block,
        "NORMED": q_norm is not None,
    }
    config = choose(constants, capability(qkv.device))
    grid = (tokens, triton.cdiv(heads + 2 * kv_heads, config.constants["HEADS"]))
    qkv_rope_cache_kernel[grid](
        qkv, cos, sin, positions, slots, cos if q_norm is None else q_norm, cos if k_norm is None else k_norm, out, keys, values,
        heads, kv_heads, qkv.stride(0), *out.stride()[:2], *keys.stride()[:3], eps=eps, **constants, **config.options,
    )  # fmt: skip
    return out


def _padded(size: int) -> int:
    """Up to a power of two; 0 stays."""
    return 1 << (size - 1).bit_length() if size else 0


def _check(qkv: Tensor, keys: Tensor, values: Tensor, out: Tensor, heads: int, q_norm: Tensor | None, k_norm: Tensor | None) -> None:
    columns = (heads + 2 * keys.shape[1]) * keys.shape[3]
    if qkv.shape[1] != columns:
        raise ValueError(f"qkv has {qkv.shape[1]} columns; {heads} query and 2 x {keys.shape[1]} KV heads of {keys.shape[3]} are {columns}")
    if (keys.shape, keys.stride()) != (values.shape, values.stride()) or any(tensor.stride(-1) != 1 for tensor in (qkv, keys, out)):
        raise ValueError("keys and values must have one shape and the same strides, and the last dimension of each tensor the stride 1")
    if (q_norm is None) != (k_norm is None):
        raise ValueError("a norm of queries without one of keys, or the other way round")


def qkv_rope_cache_reference(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """The same in float64: returns the queries, and rounds keys and values to the dtype of the cache."""
    kv_heads, block, size = keys.shape[1:]
    q, k, v = qkv.double().view(len(qkv), heads + 2 * kv_heads, size).split([heads, kv_heads, kv_heads], 1)
    if q_norm is not None and k_norm is not None:
        q, k = (x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * w.double() for x, w in ((q, q_norm), (k, k_norm)))
    q, k = (rotary_reference(x, cos, sin, positions) for x in (q, k))
    stored = slots >= 0
    for pool, x in ((keys, k), (values, v)):
        pool[slots[stored] // block, :, slots[stored] % block] = x[stored].to(pool.dtype)
    return q


SWEEP = tuple(
    Config(constants={"HEADS": heads}, num_warps=warps)
    for heads, warps in ((2, 1), (4, 1), (8, 1), (8, 2), (8, 4), (16, 2), (16, 4), (32, 4))
)  # fmt: skip


def choose(constants: Mapping[str, Any], capability: int) -> Config:
    """The shipped config: of heads of 128, 8 elements a thread and half, which are 128 bits of bfloat16."""
    return SWEEP[3]


_STRIDES = ("qkv_token", "q_token", "q_head", "block_stride", "head_stride", "token_stride")


def _case(name: str, dtype: str, size: int, rotated: int, block: int = 16, *, normed: bool = False) -> Case:
    data, tables = dict.fromkeys(("qkv", "q", "keys", "values"), f"*{dtype}"), dict.fromkeys(("cos", "sin", "q_norm", "k_norm"), "*fp32")
    places = dict.fromkeys(("positions", "slots"), "*i64")
    return Case(
        name=name,
        types={**data, **tables, **places, **dict.fromkeys(("heads", "kv_heads", *_STRIDES), "i32"), "eps": "fp32"},
        constants={
            "SIZE": size,
            "HALF": rotated // 2,
            "PADDED": triton.next_power_of_2(rotated // 2),
            "REST": _padded(size - rotated),
            "BLOCK": block,
            "NORMED": normed,
        },
        aligned=(*data, *tables, *_STRIDES),
    )


CASES = (
    _case("head 128 bf16 (Llama 8B, 70B; Qwen 2.5; Mistral)", "bf16", 128, 128),
    _case("head 128 bf16, norms (Qwen 3)", "bf16", 128, 128, normed=True),
    _case("head 128 bf16, blocks of 48", "bf16", 128, 128, 48),
    _case("head 128 fp16", "fp16", 128, 128),
    _case("head 128 fp32", "fp32", 128, 128),
    _case("head 64 bf16 (SmolLM2 135M, Llama 1B)", "bf16", 64, 64),
    _case("head 32 bf16", "bf16", 32, 32),
    _case("head 80 bf16, 32 of it rotated (Phi 2)", "bf16", 80, 32),
    _case("head 96 bf16 (Phi 3 mini)", "bf16", 96, 96),
    _case("head 112 bf16", "bf16", 112, 112),
    _case("head 192 bf16", "bf16", 192, 192),
    _case("head 256 bf16 (Gemma 2)", "bf16", 256, 256),
    _case("head 256 bf16, norms (Gemma 3)", "bf16", 256, 256, normed=True),
)

KERNELS = (Kernel(name="qkv_rope_cache", function=qkv_rope_cache_kernel, cases=CASES, sweep=SWEEP, choose=choose),)
