"""Logarithms of probabilities, ranks and likeliest tokens of a batch of rows, on a CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, prange

from mqlab_kernels.draw_cpu import about_k, gather
from mqlab_kernels.numba_math import FASTMATH
from mqlab_kernels.peaks_cpu import BLOCK
from mqlab_kernels.race_cpu import inside, mass


@njit(fastmath=FASTMATH, nogil=True)
def _likeliest(logits: Any, peaks: Any, out: Any) -> None:
    """Write the ids of the largest logits to ``out`` [k], in descending order, ties in ascending order of ids."""
    k = out.shape[0]
    if k > 0:
        found = gather(logits, peaks, about_k(logits, peaks, k))
        out[:] = found[np.argsort(-logits[found], kind="mergesort")[:k]]


@njit(fastmath=FASTMATH, nogil=True)
def _larger(logits: Any, logit: Any) -> Any:
    """How many are larger."""
    count = np.int32(0)
    for i in range(logits.shape[0]):
        count += np.int32(logits[i] > logit)
    return count


@njit(fastmath=FASTMATH, nogil=True)
def _rank(logits: Any, peaks: Any, token: int) -> int:
    """1 + how many logits are larger."""
    rank = 1
    for block in range(peaks.shape[0]):
        if peaks[block] > logits[token]:
            rank += _larger(logits[block * BLOCK : (block + 1) * BLOCK], logits[token])
    return rank


@njit(fastmath=FASTMATH, nogil=True, cache=True, parallel=True)
def logprobs(
    logits: Any,
    peaks: Any,
    rows: Any,
    tops: Any,
    scales: Any,
    leasts: Any,
    ends: Any,
    chosen: Any,
    counts: Any,
    tokens: Any,
    values: Any,
    ranks: Any,
) -> None:
    """Tell of n of the rows the logprob and rank of one token, and the likeliest tokens with theirs.

    Args:
        logits: [S, vocab] float32.
        peaks: [S, ceil(vocab / BLOCK)] float32, the largest logit of each block.
        rows: [n] int64, which rows.
        tops: [n] float32, the largest logit of each, finite.
        scales: [n] float32, 1 / temperature.
        leasts: [n] float32, with ``ends``, [n] int64, the limit (as in race_cpu) outside which a probability is 0.
        chosen: [n] int64, the token.
        counts: [n] int64, how many of the likeliest.
        tokens: [n, 1 + max(counts)] int32, written as far as counts go: the token, then the likeliest.
        values: the same in float32, written: their logprobs.
        ranks: [n] int32, written: the token's rank, from 1.
    """
    for i in prange(rows.shape[0]):
        x, p, width = logits[rows[i]], peaks[rows[i]], 1 + counts[i]
        tokens[i, 0] = chosen[i]
        _likeliest(x, p, tokens[i, 1:width])
        ranks[i] = _rank(x, p, chosen[i])
        total = math.log(mass(x, p, tops[i], scales[i], leasts[i], ends[i]))
        for column in range(width):
            token = tokens[i, column]
            value = (np.float64(x[token]) - tops[i]) * scales[i] - total
            values[i, column] = value if inside(x[token], token, leasts[i], ends[i]) else -np.inf
