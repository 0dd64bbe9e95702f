"""Uses of the two attention kernels and of what writes their cache, over a pool whose blocks lie anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mqlab.model.measure.use import Use, result

BLOCK = 16


def paged_decode(
    device: torch.device,
    dtype: torch.dtype,
    *,
    heads: int,
    kv_heads: int,
    size: int,
    batch: int,
    context: int,
    ragged: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    spare_blocks: int = 0,
) -> Use:
    """One query of each of ``batch`` sequences.

    Args:
        context: of each; the longest of them where they are ``ragged``, the first of which has none.
        spare_blocks: of the pool that nobody uses, in front of those in use.
    """
    from mqlab_kernels.paged_decode import paged_decode, paged_decode_reference

    lengths = [context * row // max(batch - 1, 1) for row in range(batch)] if ragged else [context] * batch
    keys, values, tables = _pool(lengths, kv_heads, size, device, dtype, spare_blocks)
    q = torch.randn(batch, heads, size, device=device).to(dtype)
    contexts = torch.tensor(lengths, dtype=torch.int32, device=device)
    seen = sum(min(length, window) if window else length for length in lengths)
    return Use(
        call=paged_decode,
        reference=paged_decode_reference,
        args=(q, keys, values, tables, contexts),
        kwargs={"scale": size**-0.5, "window": window, "softcap": softcap},
        outcome=result,
        moved=(2 * seen * kv_heads * size + 2 * q.numel()) * dtype.itemsize,
        flops=4 * seen * heads * size,
    )


def prefill_attention(
    device: torch.device,
    dtype: torch.dtype,
    *,
    heads: int,
    kv_heads: int,
    size: int,
    chunks: Sequence[tuple[int, int]],
    window: int = 0,
    softcap: float = 0.0,
    spare_blocks: int = 0,
) -> Use:
    """Chunks of prompts: of each its queries, and the tokens before them that are in the cache."""
    from mqlab_kernels.prefill_attention import prefill_attention, prefill_attention_reference

    lengths = [queries + before for queries, before in chunks]
    keys, values, tables = _pool(lengths, kv_heads, size, device, dtype, spare_blocks)
    starts = [0]
    for queries, _ in chunks:
        starts.append(starts[-1] + queries)
    q = torch.randn(starts[-1], heads, size, device=device).to(dtype)
    pairs = sum(_pairs(queries, before, window) for queries, before in chunks)
    return Use(
        call=prefill_attention,
        reference=prefill_attention_reference,
        args=(
            q,
            keys,
            values,
            tables,
            torch.tensor(starts, dtype=torch.int32, device=device),
            torch.tensor(lengths, dtype=torch.int32, device=device),
        ),
        kwargs={"max_query": max(queries for queries, _ in chunks), "scale": size**-0.5, "window": window, "softcap": softcap},
        outcome=result,
        moved=(2 * sum(lengths) * kv_heads * size + 2 * q.numel()) * dtype.itemsize,
        flops=4 * pairs * heads * size,
    )


def reshape_cache(
    device: torch.device, dtype: torch.dtype, *, kv_heads: int, size: int, tokens: int, blocks: int, spare_blocks: int = 0
) -> Use:
    """Keys and values of ``tokens`` tokens into slots anywhere, every eighth of which is a padded row.

    Args:
        blocks: of the pool, behind ``spare_blocks`` in which nothing is stored.
    """
    from mqlab_kernels.reshape_cache import reshape_and_cache, reshape_and_cache_reference

    keys, values, _ = _pool([blocks * BLOCK], kv_heads, size, device, dtype, spare_blocks)
    k, v = torch.randn(2, tokens, kv_heads, size, device=device).to(dtype)
    return Use(
        call=reshape_and_cache,
        reference=reshape_and_cache_reference,
        args=(k, v, keys, values, slots_of(tokens, len(keys), device)),
        outcome=lambda _, args: (args[2][spare_blocks:], args[3][spare_blocks:]),
        moved=4 * k.numel() * dtype.itemsize,
        flops=0,
    )


def slots_of(tokens: int, blocks: int, device: torch.device) -> Tensor:
    """[tokens] int64, the highest slots of a pool of ``blocks`` blocks in random order; -1 in every eighth row of more than one."""
    chosen = blocks * BLOCK - 1 - torch.randperm(tokens, device=device)
    if tokens > 1:
        chosen[::8] = -1
    return chosen


def _pool(
    lengths: Sequence[int], kv_heads: int, size: int, device: torch.device, dtype: torch.dtype, spare: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values [blocks, KV heads, BLOCK, size] and the tables [sequences, most blocks] of sequences so long."""
    counts = [-(-length // BLOCK) for length in lengths]
    shape = (spare + max(sum(counts), 1), kv_heads, BLOCK, size)
    keys, values = (torch.empty(shape, dtype=dtype, device=device).normal_() for _ in range(2))
    order = (spare + torch.randperm(shape[0] - spare, device=device)).to(torch.int32)
    tables = torch.zeros(len(lengths), max(*counts, 1), dtype=torch.int32, device=device)
    begin = 0
    for row, count in enumerate(counts):
        tables[row, :count] = order[begin : begin + count]
        begin += count
    return keys, values, tables


def _pairs(queries: int, before: int, window: int) -> int:
    """Of a query and a token that it looks at."""
    return sum(min(before + number, window or before + number) for number in range(1, queries + 1))
