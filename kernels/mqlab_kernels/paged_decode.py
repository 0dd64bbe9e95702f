"""Attention of one new token per sequence over the paged KV cache: what a decode step spends its bandwidth on.

A program attends one KV head of one row, for all query heads that share it, so that the cache is read once. With few rows the context is
split over programs, and a second kernel combines their parts. Grid and splits follow from shapes alone, never from the contexts, so that a
CUDA graph holds for any contexts; each row's splits share what it really has. Source: Flash-Decoding (Dao et al., 2023).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mqlab_kernels.attention_math import LOG2_E, soft_cap
from mqlab_kernels.capability import capability
from mqlab_kernels.kernel import Config, Kernel
from mqlab_kernels.paged_decode_cases import CASES, combine_cases

MOST_SPLITS = 128
LEAST_KEYS = 128
"""Keys that a split has at least, if its row has as many: fewer cost more to start and to combine than they bring."""
FULL_SPLITS, FULL_KEYS = 4, 4096
"""The same of a batch that fills the GPU by itself: only long contexts are split there, so that one does not end long after the rest."""
PROGRAMS = 8
"""Programs wanted for each multiprocessor: two or three are resident at a time, and some waves even out rows of different lengths."""


@triton.jit
def _shares(context, window, splits, least, TILE: tl.constexpr):
    """How a row's tiles are shared: the first position seen, its tile, how many tiles there are, and how many a split takes."""
    begin = tl.where(window > 0, tl.maximum(context - window, 0), 0)
    low = begin // TILE
    tiles = tl.cdiv(context, TILE) - low
    return begin, low, tiles, tl.maximum(tl.cdiv(tiles, splits), tl.cdiv(least, TILE))


@triton.jit
def _pages(table, positions, begin, context, BLOCK: tl.constexpr):
    """Which of these positions are seen, and the blocks they are in: [TILE] each."""
    seen = (positions >= begin) & (positions < context)
    return seen, tl.load(table + positions // BLOCK, mask=seen, other=0)


@triton.jit
def _attend(
    q, keys, values, table, block_stride, token_stride, begin, context, first, last, scale, softcap,
    SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, CAPPED: tl.constexpr, FLOAT32: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Online softmax of q [ROWS, PADDED] over tiles [first, last): weighted sum of values, sum of weights, largest exponent of 2."""
    dims = tl.arange(0, PADDED)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, PADDED], tl.float32)
    positions = first * TILE + tl.arange(0, TILE)
    seen, pages = _pages(table, positions, begin, context, BLOCK)
    for _ in range(first, last):
        # A cache may have more than 2**31 elements.
        offsets = pages.to(tl.int64) * block_stride + (positions % BLOCK).to(tl.int64) * token_stride
        inside = seen[:, None] & (dims < SIZE)[None, :]
        # The next tile's blocks are looked up here, a turn ahead: so copies of keys and values start without waiting for their addresses.
        positions += TILE
        valid = seen
        seen, pages = _pages(table, positions, begin, context, BLOCK)
        key = tl.load(keys + offsets[:, None] + dims[None, :], mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(key), input_precision="ieee" if FLOAT32 else "tf32")
        scores = soft_cap(scores, scale, softcap) * LOG2_E if CAPPED else scores * (scale * LOG2_E)
        scores = tl.where(valid[None, :], scores, float("-inf"))
        # Every tile has a position that is seen, so the maximum is finite.
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        value = tl.load(values + offsets[:, None] + dims[None, :], mask=inside, other=0.0)
        weight = weight * shrink + tl.sum(weights, 1)
        total = tl.dot(weights.to(value.dtype), value, total * shrink[:, None], input_precision="ieee" if FLOAT32 else "tf32")
        top = new_top
    return total, weight, top


@triton.jit(do_not_specialize=["table_stride", "group", "window", "splits", "least"], do_not_specialize_on_alignment=["tables", "contexts"])
def paged_decode_kernel(
    q, keys, values, tables, contexts, out, parts, logs,
    table_stride, q_row, q_head, out_row, out_head, block_stride, head_stride, token_stride,
    group, window, splits, least, scale, softcap,
    SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, CAPPED: tl.constexpr, FLOAT32: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Grid: (KV heads * ceil(group / ROWS), rows, splits).

    Constants of the case: SIZE of a head, and that PADDED to a power of two; BLOCK size of the cache; CAPPED scores; FLOAT32 products,
    which stay exact; SPLIT into ``parts`` [rows, heads, splits, SIZE] and ``logs`` [rows, heads, splits], or the answer in ``out``; ROWS of
    query heads, at least the 16 of a tensor core. Constant of speed: the TILE of keys.
    """
    row = tl.program_id(1)
    split = tl.program_id(2)
    context = tl.load(contexts + row)
    begin, low, tiles, share = _shares(context, window, splits, least, TILE)  # pyright: ignore[reportGeneralTypeIssues]
    if SPLIT and split * share >= tiles:
        return
    head_tiles = tl.cdiv(group, ROWS)
    kv_head = tl.program_id(0) // head_tiles
    member = tl.program_id(0) % head_tiles * ROWS + tl.arange(0, ROWS)
    head = kv_head * group + member
    dims = tl.arange(0, PADDED)
    inside = (member < group)[:, None] & (dims < SIZE)[None, :]
    row_q = tl.load(q + row.to(tl.int64) * q_row + head[:, None] * q_head + dims[None, :], mask=inside, other=0.0)
    total, weight, top = _attend(
        row_q.to(keys.dtype.element_ty), keys + kv_head.to(tl.int64) * head_stride, values + kv_head.to(tl.int64) * head_stride,
        tables + row.to(tl.int64) * table_stride, block_stride, token_stride, begin, context,
        low + split * share, low + tl.minimum((split + 1) * share, tiles), scale, softcap,
        SIZE, PADDED, BLOCK, CAPPED, FLOAT32, ROWS, TILE,
    )  # fmt: skip
    # Without a context there is no weight either, and zeros stay zeros.
    mean = total / tl.where(weight == 0, 1.0, weight)[:, None]
    if SPLIT:
        heads = tl.num_programs(0) // head_tiles * group
        part = (row.to(tl.int64) * heads + head) * splits + split
        tl.store(parts + part[:, None] * SIZE + dims[None, :], mean, mask=inside)
        tl.store(logs + part, top + tl.log2(weight), mask=member < group)
    else:
        tl.store(out + row.to(tl.int64) * out_row + head[:, None] * out_head + dims[None, :], mean.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["window", "splits", "least"], do_not_specialize_on_alignment=["contexts"])
def combine_kernel(
    parts, logs, contexts, out, out_row, out_head, window, splits, least,
    SIZE: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The parts of a row's splits weighed by their sums of weights. Grid: (heads, rows).

    Constants of the case: SIZE of a head, and that PADDED; the TILE of the first kernel. Constant of speed: the CHUNK of parts.
    """
    head = tl.program_id(0)
    row = tl.program_id(1)
    context = tl.load(contexts + row)
    _, _, tiles, share = _shares(context, window, splits, least, TILE)  # pyright: ignore[reportGeneralTypeIssues]
    used = tl.cdiv(tiles, share)
    dims = tl.arange(0, PADDED)
    first = (row.to(tl.int64) * tl.num_programs(0) + head) * splits
    total = tl.zeros([PADDED], tl.float32)
    weight = 0.0
    top = float("-inf")
    for start in range(0, used, CHUNK):
        split = start + tl.arange(0, CHUNK)
        log = tl.load(logs + first + split, mask=split < used, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(log, 0))
        weights = tl.exp2(log - new_top)
        shrink = tl.exp2(top - new_top)
        part = tl.load(
            parts + (first + split)[:, None] * SIZE + dims[None, :], mask=(split < used)[:, None] & (dims < SIZE)[None, :], other=0.0
        )
        total = total * shrink + tl.sum(weights[:, None] * part, 0)
        weight = weight * shrink + tl.sum(weights, 0)
        top = new_top
    mean = total / tl.where(weight == 0, 1.0, weight)
    tl.store(out + row.to(tl.int64) * out_row + head * out_head + dims, mean.to(out.dtype.element_ty), mask=dims < SIZE)


def paged_decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    contexts: Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    splits: int | None = None,
    out: Tensor | None = None,
    scratch: Tensor | None = None,
) -> Tensor:
    """Attention of each row's one query, the last token of its context.

    Args:
        q: [S, H, D] bfloat16, float16 or float32, heads contiguous in D.
        keys: [blocks, KV heads, block size, D]; ``values`` likewise, with the same strides.
        tables: [S, max blocks] int32, the blocks of each row's sequence in order. Entries past its context are not read.
        contexts: [S] int32, tokens up to the query, itself included; 0 for a padded row.
        scale: factor of the scores.
        window: how many of its context's last tokens a query sees, itself included; 0 for all. Source: Mistral 7B.
        softcap: scores become softcap * tanh(score / softcap); 0 leaves them. Source: Gemma 2.
        splits: programs that share a context, 1 to 128; ``decode_splits`` by itself.
        out: [S, H, D], to write to.
        scratch: float32, at least ``scratch_size`` elements: a CUDA graph wants one that stays. Taken anew if None.

    Returns:
        [S, H, D] in q's dtype; zeros in a row without a context.

    Raises:
        ValueError: shapes, strides or splits that do not fit.
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    _check(q, keys, values, tables, out)
    (rows, heads, size), (_, kv_heads, block, _) = q.shape, keys.shape[:4]
    if not rows:
        return out
    splits = decode_splits(rows, heads, kv_heads, tables.shape[1] * block, window, q.device) if splits is None else splits
    shares = {"window": window, "splits": splits, "least": _limits(rows, heads, kv_heads, q.device)[1]}
    parts, logs = _scratch(q, splits, scratch)
    constants = {
        "SIZE": size,
        "PADDED": _padded(size),
        "BLOCK": block,
        "CAPPED": softcap > 0,
        "FLOAT32": keys.dtype == torch.float32,
        "SPLIT": splits > 1,
        "ROWS": _rows(heads // kv_heads),
    }
    config = choose(constants, capability(q.device))
    grid = (kv_heads * math.ceil(heads // kv_heads / constants["ROWS"]), rows, splits)
    paged_decode_kernel[grid](
        q, keys, values, tables, contexts, out, parts, logs, tables.stride(0), *q.stride()[:2], *out.stride()[:2], *keys.stride()[:3],
        group=heads // kv_heads, scale=scale, softcap=softcap, **shares, **constants, **config.options,
    )  # fmt: skip
    if splits > 1:
        _combine(parts, logs, contexts, out, shares, config.constants["TILE"])
    return out


def _combine(parts: Tensor, logs: Tensor, contexts: Tensor, out: Tensor, shares: Mapping[str, Any], tile: int) -> None:
    rows, heads, size = out.shape
    constants = {"SIZE": size, "PADDED": _padded(size), "TILE": tile}
    options = choose_combine(constants, capability(out.device)).options
    combine_kernel[(heads, rows)](parts, logs, contexts, out, out.stride(0), out.stride(1), **shares, **constants, **options)


def _check(q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, out: Tensor) -> None:
    if q.shape[1] % keys.shape[1] or q.shape[2] != keys.shape[3]:
        raise ValueError(f"q [S, H, D] is {list(q.shape)}, keys [.., KV heads, .., D] {list(keys.shape)}: H must be a multiple, D the same")
    if keys.stride() != values.stride() or any(tensor.stride(-1) != 1 for tensor in (q, keys, tables, out)):
        raise ValueError("keys and values must have the same strides, and the last dimension of each tensor the stride 1")


def _padded(size: int) -> int:
    """A head size as a power of two, at least the 16 of a tensor core."""
    return max(16, 1 << (size - 1).bit_length())


def _rows(group: int) -> int:
    """Rows of a tile for a group of query heads: a tensor core's 16, or 32 and as many programs as it takes."""
    return 16 if group <= 16 else 32


def decode_splits(rows: int, heads: int, kv_heads: int, longest: int, window: int, device: torch.device) -> int:
    """Programs that share a context: as many as fill the GPU, as far as its keys go; from shapes alone.

    Args:
        rows: of the batch, padded ones among them.
        heads: query heads.
        kv_heads: KV heads.
        longest: tokens that a row of the block tables holds.
        window: of attention, 0 for none.
        device: of the launch.
    """
    most, least = _limits(rows, heads, kv_heads, device)
    return max(1, min(most, (min(longest, window) if window else longest) // least))


def _limits(rows: int, heads: int, kv_heads: int, device: torch.device) -> tuple[int, int]:
    """(most splits, least keys of one)."""
    group = heads // kv_heads
    room = PROGRAMS * _multiprocessors(device) // (rows * kv_heads * math.ceil(group / _rows(group)))
    return (min(room, MOST_SPLITS), LEAST_KEYS) if room > 1 else (FULL_SPLITS, FULL_KEYS)


def scratch_size(rows: int, heads: int, size: int, splits: int) -> int:
    """Elements of the float32 scratch of a batch: each split's part, and the logarithm of its sum of weights."""
    return rows * heads * splits * (size + 1) if splits > 1 else 0


def _scratch(q: Tensor, splits: int, scratch: Tensor | None) -> tuple[Tensor, Tensor]:
    """Parts and logs. Raises ValueError for splits out of range and a scratch too small."""
    if not 1 <= splits <= MOST_SPLITS:
        raise ValueError(f"splits={splits} must be 1 to {MOST_SPLITS}")
    rows, heads, size = q.shape
    needed = scratch_size(rows, heads, size, splits)
    parts = needed // (size + 1) * size
    scratch = torch.empty(needed, dtype=torch.float32, device=q.device) if scratch is None else scratch
    if scratch.numel() < needed or scratch.dtype != torch.float32:
        raise ValueError(f"scratch has {scratch.numel()} elements of {scratch.dtype}; {splits} splits need {needed} of float32")
    return scratch[:parts], scratch[parts:needed]


@cache
def _multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; of a CPU, on which the interpreter runs, H100's."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def paged_decode_reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    contexts: Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """The same in float64, one row at a time. Returns [S, H, D] float64."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    kv_heads, block = keys.shape[1:3]
    for row, context in enumerate(contexts.tolist()):
        places = torch.arange(max(0, context - window) if window else 0, context, device=q.device)
        blocks = tables[row, places // block].long()
        key, value = (cache[blocks, :, places % block].double() for cache in (keys, values))
        grouped = q[row].double().view(kv_heads, -1, q.shape[2])
        scores = torch.einsum("hgd,nhd->hgn", grouped, key) * scale
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        out[row] = torch.einsum("hgn,nhd->hgd", scores.softmax(-1), value).reshape(q.shape[1:])
    return out


SWEEP = tuple(
    Config(constants={"TILE": tile}, num_warps=warps, num_stages=stages)
    for tile, warps, stages in (
        (16, 4, 3), (16, 8, 2), (32, 4, 2), (32, 4, 3), (32, 4, 4), (64, 4, 2), (64, 4, 3), (64, 4, 4), (64, 8, 3),
        (128, 4, 3), (128, 8, 3),
    )
)  # fmt: skip


def choose(constants: Mapping[str, Any], capability: int) -> Config:
    """At least 16 KiB of keys and values on their way for each program, and three programs or more on a multiprocessor of H100.

    A tile has fewer keys than the program has threads: blocks are then looked up where they are needed, else they go through shared memory.
    """
    shape = _exact_shape(constants["PADDED"]) if constants["FLOAT32"] else _shape(constants["SIZE"], constants["PADDED"])
    return next(config for config in SWEEP if (config.constants["TILE"], config.num_warps, config.num_stages) == shape)


def _exact_shape(padded: int) -> tuple[int, int, int]:
    """Tile, warps and stages where products are exact: those take registers."""
    if padded > 128:
        return 16, 8, 2
    return (16 if padded == 128 else 32), 4, 3


def _shape(size: int, padded: int) -> tuple[int, int, int]:
    """Tile, warps and stages of a head size."""
    if padded > 128:
        return 32, 4, 3
    if padded < 128:
        return 64, 4, 4
    return (64, 4, 3) if size == padded else (32, 4, 4)


COMBINE_SWEEP = tuple(Config(constants={"CHUNK": chunk}, num_warps=warps) for chunk, warps in ((8, 1), (16, 2), (16, 4), (32, 4), (64, 4)))


def choose_combine(constants: Mapping[str, Any], capability: int) -> Config:
    """The shipped config."""
    return COMBINE_SWEEP[2]


COMBINE_CASES = combine_cases(choose)

KERNELS = (
    Kernel(name="paged_decode", function=paged_decode_kernel, cases=CASES, sweep=SWEEP, choose=choose),
    Kernel(name="paged_decode_combine", function=combine_kernel, cases=COMBINE_CASES, sweep=COMBINE_SWEEP, choose=choose_combine),
)
