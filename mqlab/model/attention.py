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

# numba's last-resort threading layer aborts the process when two threads run kernels at once.
_kernels = threading.Lock()


def use_threads(count: int) -> None:
    """Threads of the kernels and of torch, for what this thread starts from now on."""
    numba.set_num_threads(min(count, NUMBA_NUM_THREADS))
    # Second, because numba resets the OpenMP count that torch shares when it starts its own threads.
    torch.set_num_threads(count)


@dataclass(frozen=True)
class LongChunk:
    """A chunk whose attention is done with matrix products.

    Attributes:
        rows: its tokens among the batch's.
        blocks: [n] int64, physical blocks of its sequence.
        context: length of the sequence after this step.
        mask: [tokens, context] bool, what each token sees; None for a chunk that starts its sequence.
    """

    rows: slice
    blocks: Tensor
    context: int
    mask: Tensor | None


class Attention:
    """One step's attention: what depends on the batch is worked out once, and used by every layer.

    Args:
        batch: the step.
        cos: [positions, D / 2] float32; ``sin`` likewise.
        heads: query heads.
        block_size: tokens a block.
    """

    def __init__(self, batch: BatchTensors, cos: Tensor, sin: Tensor, heads: int, block_size: int) -> None:
        starts = batch.query_starts.numpy()
        is_long = np.diff(starts) >= LONG_CHUNK
        chunk_rows = batch.chunk_rows.numpy()
        self._heads = heads
        self._rope = (cos.numpy(), sin.numpy(), batch.positions.numpy(), batch.slots.numpy())
        rows = np.flatnonzero(~is_long[chunk_rows]).astype(np.int32)
        self._short = (batch.tables.numpy(), rows, chunk_rows, (batch.positions.numpy() + 1).astype(np.int32))
        self._long = [_long_chunk(batch, chunk, block_size) for chunk in np.flatnonzero(is_long).tolist()]

    def __call__(self, qkv: Tensor, cache: LayerCache) -> Tensor:
        """Rotate, store keys and values, attend: [T, (H + 2 KV heads) D] float32 -> [T, H D] float32."""
        size = cache.keys.shape[-1]
        q = torch.empty((qkv.shape[0], self._heads, size))
        out = torch.empty_like(q)
        scale = np.float32(size**-0.5)
        with _kernels:
            rope_cache(qkv.numpy(), *self._rope, q.numpy(), cache.key_bits, cache.value_bits)
            paged_attention(q.numpy(), cache.key_bits, cache.value_bits, *self._short, scale, out.numpy())
        for chunk in self._long:
            out[chunk.rows] = _attend_long(q[chunk.rows], cache, chunk)
        return out.flatten(1)


def _long_chunk(batch: BatchTensors, chunk: int, block_size: int) -> LongChunk:
    low, high = batch.query_starts[chunk : chunk + 2].tolist()
    context = int(batch.contexts[chunk])
    tokens, start = high - low, context - (high - low)
    mask = torch.ones(tokens, context, dtype=torch.bool).tril(start) if start else None
    return LongChunk(slice(low, high), batch.tables[chunk, : -(-context // block_size)].long(), context, mask)


def _attend_long(q: Tensor, cache: LayerCache, chunk: LongChunk) -> Tensor:
    """[n, H, D] -> [n, H, D]."""
    keys, values = (_gather(pool, chunk) for pool in (cache.keys, cache.values))
    out = F.scaled_dot_product_attention(q.transpose(0, 1)[None], keys, values, chunk.mask, is_causal=chunk.mask is None, enable_gqa=True)
    return out[0].transpose(0, 1)


def _gather(pool: Tensor, chunk: LongChunk) -> Tensor:
    """A sequence's keys or values in order, [1, KV heads, context, D] float32."""
    blocks = pool.index_select(0, chunk.blocks).float()
    return blocks.transpose(0, 1).flatten(1, 2)[None, :, : chunk.context]
