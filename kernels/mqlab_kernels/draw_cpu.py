"""Filters and draws of a batch of rows, on a CPU: temperature, then min_p, top_k and top_p, then one token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, prange

from mqlab_kernels.numba_math import FASTMATH
from mqlab_kernels.peaks_cpu import BLOCK, sort_key
from mqlab_kernels.race_cpu import ALL, mass, noise_key, race, weight_of


@njit(inline="always")
def _key_of(logit: Any) -> Any:
    return np.int64(sort_key(np.float32(logit).view(np.int32)))


@njit(inline="always")
def _logit_of(key: Any) -> Any:
    return np.int32(sort_key(np.int32(key))).view(np.float32)


@njit(fastmath=FASTMATH, nogil=True, cache=True)
def kth_largest(values: Any, k: int, slack: int, least: Any) -> Any:
    """What at least k of [n] float32, 1 <= k <= n, reach, and how many do: at most k + slack, or else it is the k-th largest itself.

    By bisection of their bits, for counting vectorises and sorting does not. ``least`` is something that at least k reach; the count is n
    where the answer is ``least``.
    """
    bits = values.view(np.int32)
    low, high, reached = _key_of(least), _key_of(np.inf), bits.shape[0]
    while low < high and reached > k + slack:
        middle = (low + high + 1) >> 1
        pivot = np.int32(middle)
        count = np.int32(0)
        for i in range(bits.shape[0]):
            count += np.int32(sort_key(bits[i]) >= pivot)
        if count >= k:
            low, reached = middle, np.int64(count)
        else:
            high = middle - 1
    return _logit_of(low), reached


@njit(fastmath=FASTMATH, nogil=True)
def gather(logits: Any, peaks: Any, least: Any) -> Any:
    """Ids, ascending, of the tokens whose logits are at least this: [n] int32."""
    blocks = np.int32(0)
    for block in range(peaks.shape[0]):
        blocks += np.int32(peaks[block] >= least)
    found = np.empty(blocks * BLOCK, np.int32)
    count = 0
    for block in range(peaks.shape[0]):
        if peaks[block] >= least:
            for token in range(block * BLOCK, min((block + 1) * BLOCK, logits.shape[0])):
                if logits[token] >= least:  # hardly ever, and so well predicted
                    found[count] = token
                    count += 1
    return found[:count]


@njit(fastmath=FASTMATH, nogil=True)
def about_k(logits: Any, peaks: Any, k: int) -> Any:
    """A logit that at least k tokens reach, 1 <= k <= vocab, and hardly more."""
    slack = k // 8
    # At least k tokens are as large as the k-th largest peak.
    values = peaks if k + slack < peaks.shape[0] else logits
    return kth_largest(values, k, slack, np.float32(-np.inf))[0]


@njit(fastmath=FASTMATH, nogil=True)
def top_k_limit(logits: Any, peaks: Any, k: int) -> Any:
    """The limit (least, end) that keeps the k likeliest, 1 <= k < vocab."""
    low = about_k(logits, peaks, k)
    found = gather(logits, peaks, low)
    least, reached = kth_largest(logits[found], k, 0, low)
    if reached == k:
        return least, np.int64(ALL)
    ties = k
    for token in found:
        ties -= logits[token] > least
    return least, _end_of_ties(logits, found, least, ties)


@njit(fastmath=FASTMATH, nogil=True)
def _end_of_ties(logits: Any, tokens: Any, logit: Any, count: int) -> Any:
    """The limit's ``end`` that keeps this many, at least one, of the tokens with just this logit."""
    for token in tokens:
        if logits[token] == logit:
            count -= 1
            if count <= 0:
                return np.int64(token) + 1
    return np.int64(ALL)


@njit(fastmath=FASTMATH, nogil=True)
def top_p_limit(logits: Any, peaks: Any, top: Any, scale: Any, least: Any, end: Any, share: Any) -> Any:
    """The limit (least, end) that keeps, within another, the smallest set whose weights sum to ``share``, by bisection.

    A draw does without it; who tells the probabilities that the filter leaves needs it.
    """
    low, high = _key_of(least), _key_of(top)
    while low < high:
        middle = (low + high + 1) >> 1
        if mass(logits, peaks, top, scale, _logit_of(middle), ALL) >= share:
            low = middle
        else:
            high = middle - 1
    cut = _logit_of(low)
    weight = np.float64(weight_of(cut, top, scale))
    if weight == 0:  # the share is of all, but for a rounding error
        return least, end
    ties = math.ceil((share - mass(logits, peaks, top, scale, cut, 0)) / weight)
    ties_end = _end_of_ties(logits, gather(logits, peaks, cut), cut, ties)
    return cut, ties_end if cut > least else min(end, ties_end)


@njit(fastmath=FASTMATH, nogil=True)
def _first_limit(logits: Any, peaks: Any, floor: Any, k: int) -> Any:
    """The limit that min_p (as its least logit) and top_k (0 for none) set together."""
    if 0 < k < logits.shape[0]:
        least, end = top_k_limit(logits, peaks, k)
        if least >= floor:
            return least, end
    return floor, np.int64(ALL)


@njit(fastmath=FASTMATH, nogil=True)
def _least_mass(peaks: Any, top: Any, scale: Any, least: Any) -> Any:
    """Weights of the largest of each block, a lower bound of all weights within a limit."""
    total = np.float32(0)
    for peak in peaks:
        total += weight_of(peak, top, scale) if peak > least else np.float32(0)
    return np.float64(total) * 0.99999


@njit(fastmath=FASTMATH, nogil=True)
def _draw_row(logits: Any, peaks: Any, top: Any, scale: Any, floor: Any, k: int, p: Any, key: Any) -> int:
    """One token. A token that top_p excludes is rejected, and with it those behind it from the next race on (FlashInfer, 2025)."""
    least, end = _first_limit(logits, peaks, floor, k)
    if p >= 1:
        return race(logits, peaks, top, scale, least, end, key, 0)
    first, last, share, attempt = least, end, np.inf, 0
    sure = p * _least_mass(peaks, top, scale, least)
    while True:
        token = race(logits, peaks, top, scale, least, end, key, attempt)
        before = mass(logits, peaks, top, scale, logits[token], token)
        if before < sure:
            return token
        if attempt == 0:
            share = p * mass(logits, peaks, top, scale, first, last)
        if before < share:
            return token
        least, end, attempt = logits[token], np.int64(token), attempt + 1


@njit(fastmath=FASTMATH, nogil=True, cache=True, parallel=True)
def draw(
    logits: Any, peaks: Any, rows: Any, tops: Any, scales: Any, floors: Any, ks: Any, ps: Any, seeds: Any, indices: Any, tokens: Any
) -> None:
    """Draw one token for each of n of the rows.

    Args:
        logits: [S, vocab] float32; masked tokens hold -inf.
        peaks: [S, ceil(vocab / BLOCK)] float32, the largest logit of each block.
        rows: [n] int64, which rows.
        tops: [n] float32, the largest logit of each, finite.
        scales: [n] float32, 1 / temperature.
        floors: [n] float32, the least logit that min_p keeps; -inf keeps all.
        ks: [n] int64, how many of the likeliest top_k keeps; 0 or the whole vocabulary for all.
        ps: [n] float64, the share that top_p keeps of what the others leave; 1 for all.
        seeds: [n] uint64; with ``indices``, uint64 likewise, all that the noise depends on.
        tokens: [n] int64, written.
    """
    for i in prange(rows.shape[0]):
        row = rows[i]
        key = noise_key(seeds[i], indices[i])
        tokens[i] = _draw_row(logits[row], peaks[row], tops[i], scales[i], floors[i], ks[i], ps[i], key)


@njit(fastmath=FASTMATH, nogil=True, cache=True, parallel=True)
def limits(logits: Any, peaks: Any, rows: Any, tops: Any, scales: Any, floors: Any, ks: Any, ps: Any, leasts: Any, ends: Any) -> None:
    """What the filters keep of n of the rows: limits, ``leasts`` [n] float32 and ``ends`` [n] int64, are written; the rest as above."""
    for i in prange(rows.shape[0]):
        row = rows[i]
        least, end = _first_limit(logits[row], peaks[row], floors[i], ks[i])
        if ps[i] < 1:
            share = ps[i] * mass(logits[row], peaks[row], tops[i], scales[i], least, end)
            least, end = top_p_limit(logits[row], peaks[row], tops[i], scales[i], least, end, share)
        leasts[i], ends[i] = least, end
