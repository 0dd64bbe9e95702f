"""Causal attention of a batch over the paged KV cache."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numba
import numpy as np
import torch
import torch.nn.functional as F
from mqlab_kernels.paged_attention_cpu import paged_attention
from mqlab_kernels.rope_cache_cpu import rope_cache
from numba.core.config import NUMBA_NUM_THREADS  # pyright: ignore[reportAttributeAccessIssue]  # set while numba is imported
from torch import Tensor

from mqlab.model.batch import BatchTensors
from mqlab.model.kv import LayerCache

LONG_CHUNK = 64
"""From this many query tokens on, gathering a sequence's KV and using matrix products beats the kernel that reads in place."""

_QUERIES = 256
"""Query tokens whose capped scores are held at once: those of a long chunk over a long context would take gigabytes."""

# numba's last-resort threading layer aborts the process when two threads run kernels at once.
KERNELS = threading.Lock()


def use_threads(count: int) -> None:
    """Threads of the kernels and of torch, for what this thread starts from now on."""
    numba.set_num_threads(min(count, NUMBA_NUM_THREADS))
    # Second, because numba resets the OpenMP count that torch shares when it starts its own threads.
    torch.set_num_threads(count)


@dataclass(frozen=True, kw_only=True)
class AttentionRule:
    """How one layer attends.

    Attributes:
        heads: query heads.
        scale: factor of the scores.
        softcap: scores become softcap * tanh(score / softcap); 0 leaves them.
        window: how many tokens a query sees, itself included; 0 for all before it.
    """

    heads: int
    scale: float
    softcap: float = 0.0
    window: int = 0


@dataclass(frozen=True)
class LongChunk:
    """A chunk whose attention is done with matrix products.

    Attributes:
        rows: its tokens among the batch's.
        blocks: [n] int64, physical blocks that hold what any of its tokens sees.
        keys: tokens in these blocks, up to the chunk's last.
        mask: [tokens, keys] bool, what each token sees; None where that is all up to itself, from the sequence's start.
    """

    rows: slice
    blocks: Tensor
    keys: int
    mask: Tensor | None


class Attention:
    """One step's attention: what depends on the batch is worked out once, and used by every layer.

    Args:
        batch: the step.
        cos: [positions, R / 2] float32, R being how many dimensions of a head are rotated (0 for none); ``sin`` likewise.
        block_size: tokens a block.
    """

    def __init__(self, batch: BatchTensors, cos: Tensor, sin: Tensor, block_size: int) -> None:
        is_long = np.diff(batch.query_starts.numpy()) >= LONG_CHUNK
        chunk_rows = batch.chunk_rows.numpy()
        self._batch = batch
        self._block_size = block_size
        self._rope = (cos.numpy(), sin.numpy(), batch.positions.numpy(), batch.slots.numpy())
        rows = np.flatnonzero(~is_long[chunk_rows]).astype(np.int32)
        self._short = (batch.tables.numpy(), rows, chunk_rows, (batch.positions.numpy() + 1).astype(np.int32))
        self._long = np.flatnonzero(is_long).tolist()
        self._laid_out: dict[int, list[LongChunk]] = {}

    def __call__(self, qkv: Tensor, cache: LayerCache, rule: AttentionRule) -> Tensor:
        """Rotate, store keys and values, attend: [T, (H + 2 KV heads) D] float32 -> [T, H D] float32."""
        q = torch.empty((qkv.shape[0], rule.heads, cache.keys.shape[-1]))
        out = torch.empty_like(q)
        settings = (np.float32(rule.scale), np.float32(rule.softcap), rule.window)
        with KERNELS:
            rope_cache(qkv.numpy(), *self._rope, q.numpy(), cache.key_bits, cache.value_bits)
            paged_attention(q.numpy(), cache.key_bits, cache.value_bits, *self._short, *settings, out.numpy())
        for chunk in self._long_chunks(rule.window):
            out[chunk.rows] = _attend_long(q[chunk.rows], cache, chunk, rule)
        return out.flatten(1)

    def _long_chunks(self, window: int) -> list[LongChunk]:
        if window not in self._laid_out:
            self._laid_out[window] = [_long_chunk(self._batch, chunk, self._block_size, window) for chunk in self._long]
        return self._laid_out[window]


def _long_chunk(batch: BatchTensors, chunk: int, block_size: int, window: int) -> LongChunk:
    low, high = batch.query_starts[chunk : chunk + 2].tolist()
    end = int(batch.contexts[chunk])
    start = end - (high - low)
    first_block = max(0, start + 1 - window) // block_size if window else 0
    base = first_block * block_size
    blocks = batch.tables[chunk, first_block : -(-end // block_size)].long()
    whole = start == 0 and (window == 0 or window >= end)
    return LongChunk(slice(low, high), blocks, end - base, None if whole else _visible(start, end, base, window))


def _visible(start: int, end: int, base: int, window: int) -> Tensor:
    """[end - start, end - base] bool: which of the keys from ``base`` on each token from ``start`` on sees."""
    queries, keys = torch.arange(start, end)[:, None], torch.arange(base, end)
    seen = keys <= queries
    return seen.logical_and_(keys > queries - window) if window else seen


def _attend_long(q: Tensor, cache: LayerCache, chunk: LongChunk, rule: AttentionRule) -> Tensor:
    """[n, H, D] -> [n, H, D]."""
    keys, values = (_gather(pool, chunk) for pool in (cache.keys, cache.values))
    queries = q.transpose(0, 1)
    if rule.softcap:
        return _attend_capped(queries, keys, values, chunk, rule).transpose(0, 1)
    masking = {"attn_mask": chunk.mask, "is_causal": chunk.mask is None}
    out = F.scaled_dot_product_attention(queries[None], keys[None], values[None], scale=rule.scale, enable_gqa=True, **masking)
    return out[0].transpose(0, 1)


def _attend_capped(queries: Tensor, keys: Tensor, values: Tensor, chunk: LongChunk, rule: AttentionRule) -> Tensor:
    """With a soft cap, which torch's own attention lacks: [H, n, D] -> [H, n, D]."""
    hidden = ~(_visible(0, chunk.keys, 0, 0) if chunk.mask is None else chunk.mask)
    parts = zip(queries.split(_QUERIES, 1), hidden.split(_QUERIES), strict=True)
    return torch.cat([_attend_part(part, keys, values, unseen, rule) for part, unseen in parts], 1)


def _attend_part(queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor, rule: AttentionRule) -> Tensor:
    groups = queries.unflatten(0, (len(keys), -1))  # [KV heads, G, n, D]
    scores = (groups.flatten(1, 2) @ keys.mT).mul_(rule.scale / rule.softcap).tanh_().mul_(rule.softcap)
    weights = scores.view(*groups.shape[:3], -1).masked_fill_(hidden, -torch.inf).softmax(-1)
    return (weights.flatten(1, 2) @ values).view_as(groups).flatten(0, 1)


def _gather(pool: Tensor, chunk: LongChunk) -> Tensor:
    """A sequence's keys or values in order, [KV heads, keys, D] float32."""
    blocks = pool.index_select(0, chunk.blocks).float()
    return blocks.transpose(0, 1).flatten(1, 2)[:, : chunk.keys]
