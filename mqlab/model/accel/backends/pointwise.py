"""What lies between products and attention, in plain torch: the reference for the fused kernels, and what runs where there are none."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mqlab.model.families import ACTIVATIONS
from mqlab.model.layers import activation

_FUNCTIONS = {kind: activation(name) for name, kind in ACTIVATIONS.items()}


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
) -> Tensor:
    """As ``QkvRopeCache`` says. A slot of -1 is the last one of the pool's last block, which must be nobody's."""
    kv_heads, size = keys.shape[1], keys.shape[-1]
    q, k, v = qkv.unflatten(1, (-1, size)).split([heads, kv_heads, kv_heads], dim=1)
    angles = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    q, k = (_rotated(x if weight is None else rms_norm(x, weight, eps), *angles) for x, weight in ((q, q_norm), (k, k_norm)))
    _store(k, keys, slots)
    _store(v, values, slots)
    return q


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """As ``Backend`` says."""
    return rms_norm(x if residual is None else residual.add_(x), weight, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension, in float32 inside."""
    return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def gated(raised: Tensor, kind: str) -> Tensor:
    """As ``Backend`` says."""
    gate, up = raised.float().chunk(2, dim=-1)
    return (_FUNCTIONS[kind](gate) * up).to(raised.dtype)


def advance(
    sampled: Tensor, tokens: Tensor, positions: Tensor, slots: Tensor, contexts: Tensor, indices: Tensor, tables: Tensor, block_size: int
) -> None:
    """As ``Backend`` says."""
    columns, width = (positions + 1) // block_size, tables.shape[1]
    blocks = tables.gather(1, columns.clamp(max=width - 1).unsqueeze(1)).squeeze(1)
    # A row that has no block for its next token becomes one that is not there.
    moving = (slots >= 0) & (columns < width) & (blocks >= 0)
    tokens.copy_(torch.where(moving, sampled.clamp(min=0), tokens))
    for counts in (positions, contexts, indices):
        counts.add_(moving)
    slots.copy_(torch.where(moving, blocks * block_size + positions % block_size, -1))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[T, heads, D] by [T, 1, R / 2], in float32 inside."""
    half = cos.shape[-1]
    first, second, rest = x.float().split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1).to(x.dtype)


def _store(rows: Tensor, pool: Tensor, slots: Tensor) -> None:
    """[T, KV heads, D] into [blocks, KV heads, block size, D]. -1 // n is -1, and so is the last of anything."""
    size = pool.shape[2]
    pool[slots // size, :, slots % size] = rows
