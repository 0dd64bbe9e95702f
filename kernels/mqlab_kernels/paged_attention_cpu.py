"""Attention that reads the paged KV cache in place, on a CPU: one row per query token, any grouped-query ratio.

Rows of decode steps and of short prefill chunks come here; a long chunk has enough work for matrix products and goes elsewhere.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, prange

from mqlab_kernels.numba_math import FASTMATH, exp_nonpositive, widen


@njit(fastmath=FASTMATH, nogil=True)
def _scores(q: Any, keys: Any, table: Any, kv_head: int, context: int, scale: float, scores: Any) -> None:
    """scores[g, t] = scale * q[g] . key[t] for t < context."""
    group, size = q.shape
    block_size = keys.shape[2]
    for start in range(0, context, block_size):
        block = keys[table[start // block_size], kv_head]
        for t in range(min(block_size, context - start)):
            for g in range(group):
                total = np.float32(0)
                for d in range(size):
                    total += q[g, d] * widen(block[t, d])
                scores[g, start + t] = total * scale


@njit(fastmath=FASTMATH, nogil=True)
def _cap(scores: Any, softcap: float) -> None:
    """Bend one row of scores into (-softcap, softcap), in place."""
    for t in range(scores.shape[0]):
        scores[t] = softcap * math.tanh(scores[t] / softcap)


@njit(fastmath=FASTMATH, nogil=True)
def _softmax(scores: Any) -> Any:
    """Turn one row of scores into exp(score - max), in place; returns their sum."""
    top = scores[0]
    for t in range(scores.shape[0]):
        top = max(top, scores[t])
    total = np.float32(0)
    for t in range(scores.shape[0]):
        scores[t] = exp_nonpositive(scores[t] - top)
        total += scores[t]
    return total


@njit(fastmath=FASTMATH, nogil=True)
def _add_values(weights: Any, values: Any, table: Any, kv_head: int, context: int, out: Any) -> None:
    """out[g] += sum over t < context of weights[g, t] * value[t]; four tokens at a time spare three stores of ``out`` in four."""
    group, size = out.shape
    block_size = values.shape[2]
    for start in range(0, context, block_size):
        block = values[table[start // block_size], kv_head]
        count = min(block_size, context - start)
        whole = count - count % 4
        for g in range(group):
            for t in range(0, whole, 4):
                w = weights[g, start + t : start + t + 4]
                for d in range(size):
                    first = w[0] * widen(block[t, d]) + w[1] * widen(block[t + 1, d])
                    out[g, d] += first + w[2] * widen(block[t + 2, d]) + w[3] * widen(block[t + 3, d])
            for t in range(whole, count):
                last = weights[g, start + t]
                for d in range(size):
                    out[g, d] += last * widen(block[t, d])


@njit(fastmath=FASTMATH, nogil=True)
def _attend(
    q: Any, keys: Any, values: Any, table: Any, kv_head: int, hidden: int, context: int, scale: float, softcap: float, out: Any
) -> None:
    """One row and one KV head: q and out [G, D], the group's query heads. The first ``hidden`` tokens of the context count nothing."""
    group, size = q.shape
    scores = np.empty((group, context), np.float32)
    _scores(q, keys, table, kv_head, context, scale, scores)
    sums = np.empty(group, np.float32)
    for g in range(group):
        if softcap > 0:
            _cap(scores[g], softcap)
        sums[g] = _softmax(scores[g, hidden:])
        scores[g, :hidden] = np.float32(0)
    out[:, :] = np.float32(0)
    _add_values(scores, values, table, kv_head, context, out)
    for g in range(group):
        for d in range(size):
            out[g, d] /= sums[g]


@njit(fastmath=FASTMATH, nogil=True, cache=True, parallel=True)
def paged_attention(
    q: Any,
    keys: Any,
    values: Any,
    tables: Any,
    rows: Any,
    table_rows: Any,
    contexts: Any,
    scale: Any,
    softcap: Any,
    window: int,
    out: Any,
) -> None:
    """Attend the query rows listed in ``rows``; the others of ``out`` are left alone.

    Args:
        q: [T, H, D] float32, one row per query token.
        keys: [blocks, KV heads, block size, D] float32, or bfloat16 bits as uint16; ``values`` likewise.
        tables: [sequences, max blocks] int32, the physical blocks of each sequence in order.
        rows: [R] int32, rows of ``q`` to compute.
        table_rows: [T] int32, which row of ``tables`` belongs to a query.
        contexts: [T] int32, tokens up to a query, itself included.
        scale: float32 factor of the scores.
        softcap: float32, scores become softcap * tanh(score / softcap); 0 leaves them. Source: Gemma 2.
        window: how many of its context's last tokens a query sees, itself included; 0 for all. Source: Mistral 7B.
        out: [T, H, D] float32.
    """
    heads = keys.shape[1]
    group = q.shape[1] // heads
    for task in prange(rows.shape[0] * heads):
        row, head = rows[task // heads], task % heads
        low, high = head * group, (head + 1) * group
        first = max(0, contexts[row] - window) if window > 0 else 0
        # From the first block that has something to see; the loops over tokens stay those of a context that is seen in full.
        base = first // keys.shape[2]
        hidden, context = first - base * keys.shape[2], contexts[row] - base * keys.shape[2]
        table = tables[table_rows[row], base:]
        _attend(q[row, low:high], keys, values, table, head, hidden, context, scale, softcap, out[row, low:high])


def paged_attention_reference(
    q: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    tables: np.ndarray,
    table_rows: np.ndarray,
    contexts: np.ndarray,
    scale: float,
    softcap: float,
    window: int,
) -> np.ndarray:
    """The same for all rows in float64, from float32 keys and values. Returns [T, H, D] float64."""
    heads, block_size = keys.shape[1:3]
    group = q.shape[1] // heads
    out = np.empty(q.shape, np.float64)
    for row, context in enumerate(contexts):
        blocks = tables[table_rows[row]][: -(-int(context) // block_size)]
        seen = [t for t in range(context) if not window or t > int(context) - 1 - window]
        for head in range(q.shape[1]):
            key, value = (cache[blocks, head // group].reshape(-1, q.shape[2])[seen].astype(np.float64) for cache in (keys, values))
            scores = key @ q[row, head].astype(np.float64) * float(scale)
            scores = float(softcap) * np.tanh(scores / float(softcap)) if softcap else scores
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ value / weights.sum()
    return out
