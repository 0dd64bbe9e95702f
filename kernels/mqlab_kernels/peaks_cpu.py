"""The largest logit of each block of 64 tokens, on a CPU: what lets draws, filters and ranks look at a few blocks instead of all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from mqlab_kernels.numba_math import FASTMATH

BLOCK = 64
"""Tokens a block; the last one of a row may be shorter."""

_SPAN = 64 * BLOCK  # is read twice while it is in the innermost cache
_LOWEST = np.int32(-(2**31))
_MAGNITUDE = np.int32(2**31 - 1)


@njit(inline="always")
def sort_key(bits: Any) -> Any:
    """The bits of a float32, as int32, turned so that integers compare as the numbers do (and its own inverse).

    LLVM vectorises a maximum of integers, and none of floats.
    """
    return bits ^ ((bits >> np.int32(31)) & _MAGNITUDE)


@njit(fastmath=FASTMATH, nogil=True)
def peaks_of(bits: Any, peaks: Any) -> None:
    """The largest logit of each block of tokens, whose logits have these bits (int32, from the start of a block on)."""
    whole = bits.shape[0] // BLOCK
    for block in range(whole):
        best = _LOWEST
        for i in range(BLOCK):
            best = max(best, sort_key(bits[block * BLOCK + i]))
        peaks[block] = np.int32(sort_key(best)).view(np.float32)
    if whole < peaks.shape[0]:
        best = _LOWEST
        for i in range(whole * BLOCK, bits.shape[0]):
            best = max(best, sort_key(bits[i]))
        peaks[whole] = np.int32(sort_key(best)).view(np.float32)


@njit(fastmath=FASTMATH, nogil=True)
def likeliest_of(logits: Any, peaks: Any) -> int:
    """The lowest id among the largest logits of a row."""
    block = 0
    for b in range(1, peaks.shape[0]):
        if peaks[b] > peaks[block]:
            block = b
    start = block * BLOCK
    for i in range(start, min(start + BLOCK, logits.shape[0])):
        if logits[i] == peaks[block]:
            return i
    return start


@njit(fastmath=FASTMATH, nogil=True)
def _sum(logits: Any) -> Any:
    total = np.float32(0)
    for i in range(logits.shape[0]):
        total += logits[i]
    return total


@njit(fastmath=FASTMATH, nogil=True)
def _survey_row(logits: Any, peaks: Any) -> Any:
    bits = logits.view(np.int32)
    total = np.float32(0)
    for start in range(0, logits.shape[0], _SPAN):
        end = min(start + _SPAN, logits.shape[0])
        peaks_of(bits[start:end], peaks[start // BLOCK : -(-end // BLOCK)])
        total += _sum(logits[start:end])
    return total


@njit(fastmath=FASTMATH, nogil=True, cache=True, parallel=True)
def survey(logits: Any, peaks: Any, likeliest: Any, sums: Any) -> None:
    """Look at all logits once.

    Args:
        logits: [S, vocab] float32.
        peaks: [S, ceil(vocab / BLOCK)] float32, written: the largest of each block. Means nothing where a logit is not a number.
        likeliest: [S] int64, written: the lowest id among the largest.
        sums: [S] float32, written: not finite where a logit is not finite (and, rarely, where all are but their sum overflows).
    """
    for row in prange(logits.shape[0]):
        sums[row] = _survey_row(logits[row], peaks[row])
        likeliest[row] = likeliest_of(logits[row], peaks[row])
