"""What a request asks of its logits before a token is chosen, done in place on a CPU: masks, additions, penalties.

Each keeps ``peaks``, the largest logit of each block, in step. Ids beyond the vocabulary are passed over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from mqlab_kernels.numba_math import FASTMATH
from mqlab_kernels.peaks_cpu import BLOCK, likeliest_of, peaks_of

_MINUS_INF = np.float32(-np.inf).view(np.int32)
_LARGEST = np.float64(np.finfo(np.float32).max)


@njit(fastmath=FASTMATH, nogil=True)
def _allow_row(bits: Any, mask: Any) -> None:
    """One row, as int32 [vocab]: arithmetic on bits vectorises, a choice between numbers does not."""
    whole = bits.shape[0] // 32
    for number in range(whole):
        word = np.int32(mask[number])
        for i in range(32):
            ban = ((word >> np.int32(i)) & np.int32(1)) - np.int32(1)  # 0 or all bits
            bits[number * 32 + i] = (bits[number * 32 + i] & ~ban) | (_MINUS_INF & ban)
    for i in range(whole * 32, bits.shape[0]):
        if not (mask[whole] >> np.uint32(i % 32)) & np.uint32(1):
            bits[i] = _MINUS_INF


@njit(fastmath=FASTMATH, nogil=True, cache=True, parallel=True)
def allow(logits: Any, peaks: Any, rows: Any, masks: Any) -> None:
    """Ban what a mask does not allow: -inf.

    Args:
        logits: [S, vocab] float32.
        peaks: [S, ceil(vocab / BLOCK)] float32.
        rows: [n] int64, which rows.
        masks: [n, ceil(vocab / 32)] uint32; bit i % 32 of word i // 32 set where token i is allowed.
    """
    for i in prange(rows.shape[0]):
        bits = logits[rows[i]].view(np.int32)
        _allow_row(bits, masks[i])
        peaks_of(bits, peaks[rows[i]])


@njit(fastmath=FASTMATH, nogil=True, cache=True)
def add(logits: Any, peaks: Any, rows: Any, tokens: Any, values: Any) -> None:
    """Add to single logits: ``values`` [n] float32 at ``rows`` and ``tokens``, [n] int64; -inf bans."""
    for i in range(rows.shape[0]):
        row, token = rows[i], tokens[i]
        if 0 <= token < logits.shape[1]:
            logits[row, token] += values[i]
            block = token // BLOCK
            part = logits[row, block * BLOCK : (block + 1) * BLOCK]
            peaks_of(part.view(np.int32), peaks[row, block : block + 1])


@njit(fastmath=FASTMATH, nogil=True)
def _penalised(logit: Any, count: int, repetition: Any, frequency: Any, presence: Any) -> Any:
    """A logit after the penalties, float32 and finite where it was."""
    if logit == -np.inf:
        return logit
    value = np.float64(logit)
    value = value / repetition if value > 0 else value * repetition
    value -= frequency * count + (presence if count > 0 else 0.0)
    return np.float32(min(max(value, -_LARGEST), _LARGEST))


@njit(fastmath=FASTMATH, nogil=True)
def _penalise_row(logits: Any, counts: Any, history: Any, prompt: int, repetition: Any, frequency: Any, presence: Any) -> None:
    """``counts`` [vocab] int32 are 0 before and after."""
    vocab = logits.shape[0]
    for i in range(prompt, history.shape[0]):
        if 0 <= history[i] < vocab:
            counts[history[i]] += 1
    for token in history:
        if 0 <= token < vocab and counts[token] >= 0:
            logits[token] = _penalised(logits[token], counts[token], repetition, frequency, presence)
            counts[token] = -1
    for token in history:
        if 0 <= token < vocab:
            counts[token] = 0


@njit(fastmath=FASTMATH, nogil=True, cache=True, parallel=True)
def penalise(
    logits: Any,
    peaks: Any,
    rows: Any,
    history: Any,
    starts: Any,
    prompts: Any,
    repetition: Any,
    frequency: Any,
    presence: Any,
    spans: int,
) -> None:
    """Penalise tokens for having come before.

    Repetition (Keskar et al. 2019) looks at prompt and output: positive logits are divided by it, the others multiplied. Frequency
    (times how often) and presence look at the output alone and are then subtracted.

    Args:
        logits: [S, vocab] float32.
        peaks: [S, ceil(vocab / BLOCK)] float32.
        rows: [n] int64, which rows.
        history: int32, the ids that came before, row after row: those of row i are history[starts[i] : starts[i + 1]].
        starts: [n + 1] int64.
        prompts: [n] int64, how many of a row's ids, from the first, are its prompt.
        repetition: [n] float64, above 0; ``frequency`` and ``presence`` likewise, of any sign.
        spans: how many threads at most.
    """
    for span in prange(spans):
        counts = np.zeros(logits.shape[1], np.int32)
        for i in range(span, rows.shape[0], spans):
            row, ids = rows[i], history[starts[i] : starts[i + 1]]
            _penalise_row(logits[row], counts, ids, prompts[i], repetition[i], frequency[i], presence[i])
            peaks_of(logits[row].view(np.int32), peaks[row])


@njit(fastmath=FASTMATH, nogil=True, cache=True)
def look_again(logits: Any, peaks: Any, rows: Any, likeliest: Any) -> None:
    """Write to ``likeliest`` [S] int64 the lowest id among the largest logits of these rows."""
    for row in rows:
        likeliest[row] = likeliest_of(logits[row], peaks[row])
