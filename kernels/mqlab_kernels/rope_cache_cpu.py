"""Rotary positions and the write into the paged KV cache, in one pass over the fused projections, on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from mqlab_kernels.numba_math import FASTMATH, narrow


@njit(fastmath=FASTMATH, nogil=True, cache=True, parallel=True)
def rope_cache(qkv: Any, cos: Any, sin: Any, positions: Any, slots: Any, q: Any, keys: Any, values: Any) -> None:
    """Rotate queries and keys, store keys and values in their slots.

    The first R dimensions of a head are rotated, i with i + R/2, as Hugging Face's Llama and GPT-NeoX do; the rest pass.

    Args:
        qkv: [T, (H + 2 * KV heads) * D] float32: queries, keys, values of each token.
        cos: [positions, R / 2] float32, 0 <= R <= D; ``sin`` likewise.
        positions: [T] int64.
        slots: [T] int64, block * block size + offset.
        q: [T, H, D] float32, receives the rotated queries.
        keys: [blocks, KV heads, block size, D] float32, or bfloat16 bits as uint16; ``values`` likewise.
    """
    heads, size = q.shape[1], q.shape[2]
    kv_heads, block_size = keys.shape[1], keys.shape[2]
    half = cos.shape[1]
    for token in prange(qkv.shape[0]):
        c, s = cos[positions[token]], sin[positions[token]]
        block, offset = slots[token] // block_size, slots[token] % block_size
        for head in range(heads):
            x = qkv[token, head * size : (head + 1) * size]
            for d in range(half):
                q[token, head, d] = x[d] * c[d] - x[d + half] * s[d]
                q[token, head, d + half] = x[d + half] * c[d] + x[d] * s[d]
            for d in range(2 * half, size):
                q[token, head, d] = x[d]
        for head in range(kv_heads):
            k = qkv[token, (heads + head) * size : (heads + head + 1) * size]
            v = qkv[token, (heads + kv_heads + head) * size : (heads + kv_heads + head + 1) * size]
            key, value = keys[block, head, offset], values[block, head, offset]
            for d in range(half):
                key[d] = narrow(k[d] * c[d] - k[d + half] * s[d], key[d])
                key[d + half] = narrow(k[d + half] * c[d] + k[d] * s[d], key[d])
            for d in range(2 * half, size):
                key[d] = narrow(k[d], key[d])
            for d in range(size):
                value[d] = narrow(v[d], value[d])


def rope_reference(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotated heads in float64: x [T, heads, D], tables as above. Returns [T, heads, D]."""
    half = cos.shape[1]
    first, second, rest = np.split(x.astype(np.float64), [half, 2 * half], axis=-1)
    c, s = (table[positions].astype(np.float64)[:, None] for table in (cos, sin))
    return np.concatenate([first * c - second * s, second * c + first * s, rest], axis=-1)
