"""Attention of chunks of prompts over the paged KV cache: causal, after a prefix of any length, chunks of one token among them.

The queries of a KV head's group share its keys, so a tile's rows are (query, head of the group) pairs, query after query: any ratio fills
the tile. Tiles are found by bisection in ``query_starts``, so that a batch with one long chunk and many of one token has no idle programs.
Sources: FlashAttention-2 (arXiv 2307.08691) for the online softmax; vLLM's unified attention kernel for the bisection.
"""

# Triton's functions give several values, of which its types know nothing.
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mqlab_kernels.attention_math import LOG2_E, soft_cap
from mqlab_kernels.capability import capability
from mqlab_kernels.kernel import Case, Config, Kernel
from mqlab_kernels.paged_decode import paged_decode_reference


@triton.jit
def _tiles(
    q, total, top, weight, start, stop,
    keys, values, table, block_stride, token_stride,
    positions, first, last, scale, softcap, window,
    SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, FLOAT32: tl.constexpr,
):  # fmt: skip
    """Attend the tiles of KEYS keys in [start, stop); of masked tiles keys outside [first, last) are not even read."""
    dims = tl.arange(0, PADDED)
    # Weights are powers of two: the factor of the scores is folded into that of the base.
    factor = LOG2_E if CAPPED else scale * LOG2_E
    for at in tl.range(start, stop, KEYS, num_stages=1 if MASKED else None):
        places = at + tl.arange(0, KEYS)
        inside = (places >= first) & (places < last)
        blocks = tl.load(table + places // BLOCK, mask=inside, other=0) if MASKED else tl.load(table + places // BLOCK)
        # A cache may have more than 2**31 elements.
        offsets = blocks.to(tl.int64) * block_stride + (places % BLOCK) * token_stride
        pointers = offsets[:, None] + dims[None, :]
        if MASKED:
            read = inside[:, None] & (dims < SIZE)[None, :]
            key = tl.load(keys + pointers, mask=read, other=0.0)
            value = tl.load(values + pointers, mask=read, other=0.0)
        elif SIZE != PADDED:
            key = tl.load(keys + pointers, mask=(dims < SIZE)[None, :], other=0.0)
            value = tl.load(values + pointers, mask=(dims < SIZE)[None, :], other=0.0)
        else:
            key = tl.load(keys + pointers)
            value = tl.load(values + pointers)

        scores = tl.dot(q, tl.trans(key.to(q.dtype)), input_precision="tf32x3" if FLOAT32 else "tf32")
        if CAPPED:
            scores = soft_cap(scores, scale, softcap)
        if MASKED:
            seen = inside[None, :] & (places[None, :] <= positions[:, None])
            if WINDOWED:
                seen = seen & (places[None, :] > positions[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1) * factor)
        # A row that has seen no key yet has no top: any finite number makes its weights zeros.
        level = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
        weights = tl.exp2(scores * factor - level[:, None])
        shrink = tl.exp2(top - level)
        weight = weight * shrink + tl.sum(weights, 1)
        total = tl.dot(weights.to(q.dtype), value.to(q.dtype), total * shrink[:, None], input_precision="tf32x3" if FLOAT32 else "tf32")
        top = new_top
    return total, top, weight


@triton.jit
def _chunk_of(tile, query_starts, chunks, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """The chunk whose tiles begin last at or before ``tile``: those of chunk c begin at (its first row) // ROWS + c."""
    low = 0
    high = chunks
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_starts + middle) * GROUP // ROWS + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


# What differs from step to step must not compile anew: counts, and where in a larger tensor the batch's integers begin.
@triton.jit(do_not_specialize=["chunks", "table_stride", "window"], do_not_specialize_on_alignment=["tables", "query_starts", "contexts"])
def prefill_attention_kernel(
    q, keys, values, tables, query_starts, contexts, out,
    chunks, table_stride, q_token, q_head, out_token, out_head, block_stride, head_stride, token_stride,
    scale, softcap, window,
    GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, LONGEST: tl.constexpr,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, FLOAT32: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one KV head.

    Constants of the case: GROUP query heads of a KV head; SIZE of a head, and that PADDED to a power of two; BLOCK size of the cache;
    LONGEST chunk in rows, 16, 64 or 128; FLOAT32 products, each three of tf32, which are as good and do not need every register.
    Constants of speed: ROWS of a tile, at most LONGEST, and its KEYS.
    """
    RANGE: tl.constexpr = ROWS if ROWS < LONGEST else LONGEST
    # The last tiles of a chunk see most keys: begun first, they leave short ones to fill the end.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    chunk = _chunk_of(tile, query_starts, chunks, GROUP, RANGE)
    start = tl.load(query_starts + chunk)
    count = tl.load(query_starts + chunk + 1) - start
    row = (tile - (start * GROUP // RANGE + chunk)) * RANGE
    if row >= count * GROUP:
        return
    rows = row + tl.arange(0, RANGE)
    queries = rows // GROUP
    dims = tl.arange(0, PADDED)
    inside = (rows < count * GROUP)[:, None] & (dims < SIZE)[None, :]
    tokens = (start + queries).to(tl.int64)
    heads = kv_head * GROUP + rows % GROUP
    tile_q = tl.load(q + tokens[:, None] * q_token + heads[:, None] * q_head + dims[None, :], mask=inside, other=0.0)

    before = tl.load(contexts + chunk) - count
    positions = before + queries
    lowest = before + row // GROUP
    last = before + tl.minimum((row + RANGE - 1) // GROUP + 1, count)
    first = tl.maximum(lowest + 1 - window, 0) if WINDOWED else 0
    # Tiles from ``clear`` to ``edge`` need no mask: their keys are in every query's window and before every query.
    begin = first // KEYS * KEYS
    edge = tl.maximum(lowest + 1, 0) // KEYS * KEYS
    clear = tl.maximum(tl.minimum(tl.cdiv(tl.maximum(last - window, 0), KEYS) * KEYS, edge), begin) if WINDOWED else begin

    key_head = keys + kv_head.to(tl.int64) * head_stride
    value_head = values + kv_head.to(tl.int64) * head_stride
    table = tables + chunk.to(tl.int64) * table_stride
    total = tl.zeros([RANGE, PADDED], tl.float32)
    top = tl.full([RANGE], float("-inf"), tl.float32)
    weight = tl.zeros([RANGE], tl.float32)
    if WINDOWED:
        total, top, weight = _tiles(
            tile_q, total, top, weight, begin, clear, key_head, value_head, table, block_stride, token_stride,
            positions, first, last, scale, softcap, window, SIZE, PADDED, BLOCK, KEYS, True, CAPPED, True, FLOAT32,
        )  # fmt: skip
    total, top, weight = _tiles(
        tile_q, total, top, weight, clear, edge, key_head, value_head, table, block_stride, token_stride,
        positions, first, last, scale, softcap, window, SIZE, PADDED, BLOCK, KEYS, False, CAPPED, False, FLOAT32,
    )  # fmt: skip
    total, top, weight = _tiles(
        tile_q, total, top, weight, edge, last, key_head, value_head, table, block_stride, token_stride,
        positions, first, last, scale, softcap, window, SIZE, PADDED, BLOCK, KEYS, True, CAPPED, WINDOWED, FLOAT32,
    )  # fmt: skip
    total = total / tl.where(weight == 0, 1.0, weight)[:, None]
    out_pointers = out + tokens[:, None] * out_token + heads[:, None] * out_head + dims[None, :]
    tl.store(out_pointers, total.to(out.dtype.element_ty), mask=inside)


def prefill_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    query_starts: Tensor,
    contexts: Tensor,
    *,
    max_query: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of each chunk's queries over its context, itself included: query i of n in chunk c is at position contexts[c] - n + i.

    Args:
        q: [T, H, D], heads contiguous in D.
        keys: [blocks, KV heads, block size, D] with the keys of these queries in it; ``values`` likewise, with the same strides.
        tables: [C, max blocks] int32, the blocks of each chunk's sequence in order.
        query_starts: [C + 1] int32, where the queries of each chunk begin in ``q``, from 0, never falling.
        contexts: [C] int32, tokens of each sequence up to the end of its chunk.
        max_query: queries of the longest chunk, or more.
        scale: factor of the scores, above 0.
        window: how many of its context's last tokens a query sees, itself included; 0 for all. Source: Mistral 7B.
        softcap: scores become softcap * tanh(score / softcap); 0 leaves them. Source: Gemma 2.
        out: [T, H, D], to write to. Rows that belong to no chunk stay as they are.

    Returns:
        [T, H, D] in q's dtype; zeros where a query sees no key.

    Raises:
        ValueError: shapes or strides that do not fit.
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    _check(q, keys, values, tables, out, scale)
    (tokens, heads, size), (_, kv_heads, block, _), chunks = q.shape, keys.shape, len(contexts)
    if not tokens or not chunks:
        return out
    constants: dict[str, Any] = {
        "GROUP": heads // kv_heads,
        "SIZE": size,
        "PADDED": triton.next_power_of_2(size),
        "BLOCK": block,
        "LONGEST": longest(max_query * (heads // kv_heads)),
        "CAPPED": softcap > 0,
        "WINDOWED": window > 0,
        "FLOAT32": q.dtype == torch.float32,
    }
    config = choose(constants, capability(q.device))
    rows = min(config.constants["ROWS"], constants["LONGEST"])
    grid = (tokens * constants["GROUP"] // rows + chunks, kv_heads)
    prefill_attention_kernel[grid](
        q, keys, values, tables, query_starts, contexts, out,
        chunks, tables.stride(0), *q.stride()[:2], *out.stride()[:2], *keys.stride()[:3],
        scale=scale, softcap=softcap, window=window, **constants, **config.options,
    )  # fmt: skip
    return out


def longest(rows: int) -> int:
    """The class of a chunk by its rows: what LONGEST says."""
    return next(most for most in (16, 64, 128) if rows <= most or most == 128)


def _check(q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, out: Tensor, scale: float) -> None:
    if q.shape[1] % keys.shape[1] or q.shape[2] != keys.shape[3]:
        sizes = f"q has {q.shape[1]} heads of {q.shape[2]}, keys {keys.shape[1]} of {keys.shape[3]}"
        raise ValueError(f"{sizes}: not a multiple of heads of one size")
    if (keys.shape, keys.stride()) != (values.shape, values.stride()) or any(tensor.stride(-1) != 1 for tensor in (q, keys, tables, out)):
        raise ValueError("keys and values must have one shape and the same strides, and the last dimension of each tensor the stride 1")
    if scale <= 0:
        raise ValueError(f"scale={scale} must be above 0: it is applied after the largest score is found")


def prefill_attention_reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    query_starts: Tensor,
    contexts: Tensor,
    *,
    max_query: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """The same in float64: each query is a decode of its own, of the context up to its token."""
    lengths = query_starts.diff()
    chunks = torch.arange(len(lengths), device=q.device).repeat_interleave(lengths)
    tokens = torch.arange(len(chunks), device=q.device)
    ends = (contexts - query_starts[1:])[chunks] + tokens + 1
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    out[: len(tokens)] = paged_decode_reference(
        q[: len(tokens)], keys, values, tables[chunks], ends, scale=scale, window=window, softcap=softcap
    )
    return out


SWEEP = tuple(
    Config(constants={"ROWS": rows, "KEYS": keys}, num_warps=warps, num_stages=stages)
    for rows, keys, warps, stages in (
        (128, 128, 8, 3), (128, 128, 8, 5), (128, 64, 8, 3), (128, 64, 8, 5), (128, 64, 8, 7), (128, 32, 8, 3), (128, 32, 8, 5),
        (64, 64, 4, 3), (64, 64, 4, 5), (64, 32, 4, 3), (64, 32, 4, 5), (64, 64, 8, 3), (64, 64, 8, 5), (64, 32, 8, 3),
        (16, 64, 4, 3), (16, 64, 4, 5), (16, 32, 4, 3), (16, 32, 4, 5), (16, 16, 4, 3),
    )
)  # fmt: skip


def choose(constants: Mapping[str, Any], capability: int) -> Config:
    """The largest tile that does not spill.

    Two stages of five are for the block table, which is read ahead of the keys that it tells of: keys and values are two tiles ahead.
    """
    tile = _tile(constants, capability)
    return next(config for config in SWEEP if (*config.constants.values(), config.num_warps, config.num_stages) == tile)


def _tile(constants: Mapping[str, Any], capability: int) -> tuple[int, int, int, int]:
    """Rows, keys, warps and stages."""
    size, longest, capped, windowed = (constants[name] for name in ("PADDED", "LONGEST", "CAPPED", "WINDOWED"))
    if constants["FLOAT32"]:
        return 16, 16, 4, 3
    if longest == 16:
        return 16, 64 if size <= 128 else 32, 4, 5
    if size > 128:
        return (64, 32, 8, 3) if longest == 64 or capability < 90 else (128, 32, 8, 5)
    if longest == 64:
        return 64, 32 if size == 128 and capability < 90 else 64, 4, 5
    if capability < 90:
        return _tile_of_a100(size, windowed or capped)
    if capability < 100:
        return 128, 128 if size == 128 and not capped else 64, 8, 5
    return 128, (64 if size == 128 else 32) if windowed or capped else 128, 8, 5


def _tile_of_a100(size: int, more: bool) -> tuple[int, int, int, int]:
    """More: than the least that a tile may take of registers."""
    if size < 128:
        return 128, 64, 8, 5
    return (64, 32, 4, 5) if more else (128, 32, 8, 5)


_STRIDES = ("q_token", "q_head", "out_token", "out_head", "block_stride", "head_stride", "token_stride")
_INTEGERS = ("chunks", "table_stride", *_STRIDES, "window")


def _case(
    name: str, dtype: str, size: int, group: int, block: int = 16, *, longest: int = 128, capped: bool = False, windowed: bool = False
) -> Case:
    data, integers = (
        dict.fromkeys(("q", "keys", "values", "out"), f"*{dtype}"),
        dict.fromkeys(("tables", "query_starts", "contexts"), "*i32"),
    )
    return Case(
        name=name,
        types={**data, **integers, **dict.fromkeys(_INTEGERS, "i32"), "scale": "fp32", "softcap": "fp32"},
        constants={
            "GROUP": group,
            "SIZE": size,
            "PADDED": triton.next_power_of_2(size),
            "BLOCK": block,
            "LONGEST": longest,
            "CAPPED": capped,
            "WINDOWED": windowed,
            "FLOAT32": dtype == "fp32",
        },
        aligned=(*data, *_STRIDES),
    )


CASES = (
    *(_case(f"head 128 bf16, ratio 4, chunks of {rows} rows (Llama 8B)", "bf16", 128, 4, longest=rows) for rows in (128, 64, 16)),
    _case("head 128 bf16, ratio 4, window (Mistral 7B)", "bf16", 128, 4, windowed=True),
    _case("head 128 bf16, ratio 4, soft cap", "bf16", 128, 4, capped=True),
    _case("head 128 bf16, ratio 2, window, soft cap (Gemma 2 27B)", "bf16", 128, 2, capped=True, windowed=True),
    _case("head 128 bf16, ratio 7 (Qwen 2.5 7B)", "bf16", 128, 7),
    _case("head 128 bf16, ratio 8 (Llama 70B)", "bf16", 128, 8),
    _case("head 128 bf16, ratio 4, blocks of 48", "bf16", 128, 4, 48),
    _case("head 128 bf16, ratio 4, blocks of 1", "bf16", 128, 4, 1),
    _case("head 128 fp16, ratio 4", "fp16", 128, 4),
    _case("head 128 fp32, ratio 4", "fp32", 128, 4),
    *(_case(f"head 64 bf16, ratio 3, chunks of {rows} rows (SmolLM2 135M)", "bf16", 64, 3, longest=rows) for rows in (16, 64, 128)),
    _case("head 64 bf16, ratio 4 (Llama 1B)", "bf16", 64, 4),
    _case("head 64 bf16, ratio 4, window", "bf16", 64, 4, windowed=True),
    _case("head 64 fp16, ratio 4", "fp16", 64, 4),
    _case("head 64 fp32, ratio 4", "fp32", 64, 4),
    _case("head 32 bf16, ratio 1", "bf16", 32, 1),
    _case("head 80 bf16, ratio 1 (Phi 2)", "bf16", 80, 1),
    _case("head 96 bf16, ratio 1, window (Phi 3 mini)", "bf16", 96, 1, windowed=True),
    _case("head 112 bf16, ratio 1", "bf16", 112, 1),
    _case("head 192 bf16, ratio 8", "bf16", 192, 8),
    *(
        _case(f"head 256 bf16, ratio 2, window, chunks of {rows} rows (Gemma 3 4B)", "bf16", 256, 2, longest=rows, windowed=True)
        for rows in (16, 64, 128)
    ),
    _case("head 256 bf16, ratio 2, window, soft cap (Gemma 2 9B)", "bf16", 256, 2, capped=True, windowed=True),
    _case("head 256 bf16, ratio 2, soft cap (Gemma 2 9B)", "bf16", 256, 2, capped=True),
)

KERNELS = (Kernel(name="prefill_attention", function=prefill_attention_kernel, cases=CASES, sweep=SWEEP, choose=choose),)
