"""One draw from a row of logits, stable against rounding, on a CPU.

Tokens race: token i finishes at -ln(u_i) / w_i, w_i being its weight exp((logit - top) / temperature), and so wins with probability
w_i / sum(w). The numbers u depend on (key, id) alone, so a rounding error in the weights changes the winner only when the first two are
that close; in the inverse of a cumulative distribution it moves every boundary of a tail of tens of thousands of tokens.

The race is run twice: among blocks of tokens, each with the sum of its weights, then among the tokens of the winning block with numbers
of their own: P(block) P(token | block), the same distribution. A block's largest logit bounds its weight, and most blocks are out
of the race with that alone, so that a draw computes the weights of a few tens of blocks.

A draw may be limited to the first tokens in descending order of logits, ties in ascending order of ids: every filter (min_p, top_k,
top_p) keeps some number of these. A limit (least, end) keeps the tokens above ``least``, and of those equal to it the ids below ``end``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from mqlab_kernels.numba_math import FASTMATH, exp_nonpositive
from mqlab_kernels.peaks_cpu import BLOCK, sort_key

ALL = 2**31 - 1
"""As a limit's ``end``: no id is too large."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

# Counters of a key: tokens from 0, blocks from 2^33, and 2^34 further for each attempt.
_BLOCKS = np.uint64(2**33)
_ATTEMPT = np.uint64(34)

_SPAN = 8 * BLOCK
_FEW = 3  # where a third of the blocks are looked at, looking at all is faster
_LEAST = np.float32(-87.0)  # below it, a weight is 0: no float32 that is not denormal
_SLACK = np.float64(1.00001)  # more than the rounding of a sum of weights


@njit(inline="always")
def mix(x: Any) -> Any:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, cache=True)
def noise_key(seed: Any, index: Any) -> Any:
    """64 bits that depend on (seed, index), both uint64, alone: SplitMix64 as a counter-based hash."""
    return mix((mix(seed + _GOLDEN) ^ index) + _GOLDEN)


@njit(inline="always")
def uniform(key: Any, counter: Any) -> Any:
    """A float64 in (0, 1) that depends on (key, counter), both uint64, alone."""
    x = mix(key + (counter + np.uint64(1)) * _GOLDEN)
    return (np.float64(x >> np.uint64(11)) + 0.5) * 2.0**-53


@njit(inline="always")
def weight_of(logit: Any, top: Any, scale: Any) -> Any:
    """exp((logit - top) * scale) in float32, 0 where that is next to nothing; ``top`` is the largest logit, ``scale`` 1 / temperature."""
    z = (logit - top) * scale
    return exp_nonpositive(z) if z > _LEAST else np.float32(0)


@njit(inline="always")
def inside(logit: Any, token: Any, least: Any, end: Any) -> Any:
    """Whether a token is within a limit."""
    return (logit > least) | ((logit == least) & (token < end))


@njit(inline="always")
def _above(logit: Any) -> Any:
    """The next larger float32; that of both zeros is the same."""
    key = np.int64(sort_key(np.float32(logit).view(np.int32))) + 1
    return np.int32(sort_key(np.int32(max(key, 1) if key == 0 else key))).view(np.float32)


@njit(fastmath=FASTMATH, nogil=True)
def _mass_from(logits: Any, top: Any, scale: Any, bound: Any) -> Any:
    """Sum of the weights of one whole block's tokens whose logits are at least this; its length is a constant to the compiler."""
    total = np.float32(0)
    for i in range(BLOCK):
        weight = weight_of(logits[i], top, scale)
        total += weight if logits[i] >= bound else np.float32(0)
    return total


@njit(fastmath=FASTMATH, nogil=True)
def _mass_inside(logits: Any, top: Any, scale: Any, least: Any, end: Any) -> Any:
    """Sum of the weights of one block's tokens within a limit whose ``end`` counts from the block's first token."""
    total = np.float32(0)
    for i in range(logits.shape[0]):
        total += weight_of(logits[i], top, scale) if inside(logits[i], i, least, end) else np.float32(0)
    return total


@njit(fastmath=FASTMATH, nogil=True)
def block_mass(logits: Any, block: int, top: Any, scale: Any, least: Any, end: Any) -> Any:
    """Sum of the weights of one block's tokens within a limit, float32."""
    start = block * BLOCK
    if start + BLOCK > logits.shape[0] or start < end < start + BLOCK:
        return _mass_inside(logits[start : start + BLOCK], top, scale, least, end - start)
    return _mass_from(logits[start : start + BLOCK], top, scale, _above(least) if end <= start else least)


@njit(fastmath=FASTMATH, nogil=True)
def mass(logits: Any, peaks: Any, top: Any, scale: Any, least: Any, end: Any) -> Any:
    """Sum of the weights of all tokens within a limit, float64."""
    blocks = np.int32(0)
    for block in range(peaks.shape[0]):
        blocks += np.int32(peaks[block] >= least)
    if blocks * _FEW > peaks.shape[0]:
        split = min(end, logits.shape[0])
        return _mass_above(logits[:split], top, scale, least) + _mass_above(logits[split:], top, scale, _above(least))
    total = np.float64(0)
    for block in range(peaks.shape[0]):
        if peaks[block] >= least:
            total += np.float64(block_mass(logits, block, top, scale, least, end))
    return total


@njit(fastmath=FASTMATH, nogil=True)
def _mass_above(logits: Any, top: Any, scale: Any, bound: Any) -> Any:
    """Sum of the weights of the tokens whose logits are at least this, float64: of float32 sums of spans."""
    total = np.float64(0)
    whole = logits.shape[0] // _SPAN
    for span in range(whole):  # of a length that the compiler knows
        part = np.float32(0)
        for i in range(_SPAN):
            weight = weight_of(logits[span * _SPAN + i], top, scale)
            part += weight if logits[span * _SPAN + i] >= bound else np.float32(0)
        total += np.float64(part)
    rest = np.float32(0)
    for i in range(whole * _SPAN, logits.shape[0]):
        weight = weight_of(logits[i], top, scale)
        rest += weight if logits[i] >= bound else np.float32(0)
    return total + np.float64(rest)


@njit(fastmath=FASTMATH, nogil=True, cache=True)
def race(logits: Any, peaks: Any, top: Any, scale: Any, least: Any, end: Any, key: Any, attempt: int) -> int:
    """The token that a draw gives.

    Args:
        logits: [vocab] float32; -inf never wins.
        peaks: [ceil(vocab / BLOCK)] float32, the largest of each block.
        top: the largest logit, finite, within the limit.
        scale: float32, 1 / temperature.
        least: float32, with ``end`` the limit within which tokens take part; (-inf, ALL) for all.
        key: uint64; ``attempt`` numbers the races that are run with one key.
    """
    base = np.uint64(attempt) << _ATTEMPT
    block = _race_blocks(logits, peaks, top, scale, least, end, key, base + _BLOCKS)
    start = block * BLOCK
    winner, best = start, np.inf
    for i in range(start, min(start + BLOCK, logits.shape[0])):
        if inside(logits[i], i, least, end):
            weight = np.float64(weight_of(logits[i], top, scale))
            finish = -math.log(uniform(key, base + np.uint64(i))) / weight if weight > 0 else np.inf
            if finish < best:
                winner, best = i, finish
    return winner


@njit(fastmath=FASTMATH, nogil=True)
def _race_blocks(logits: Any, peaks: Any, top: Any, scale: Any, least: Any, end: Any, key: Any, base: Any) -> int:
    """The block that wins."""
    earliest, favourite = _earliest(peaks, top, scale, least, key, base)
    winner, best = favourite, _finish(logits, favourite, top, scale, least, end, key, base)
    for block in range(peaks.shape[0]):
        if earliest[block] < best and block != favourite:
            finish = _finish(logits, block, top, scale, least, end, key, base)
            if finish < best or (finish == best and block < winner):
                winner, best = block, finish
    return winner


@njit(fastmath=FASTMATH, nogil=True, error_model="numpy")
def _earliest(peaks: Any, top: Any, scale: Any, least: Any, key: Any, base: Any) -> tuple[Any, int]:
    """When each block can finish at the earliest, were all its logits as large as the largest; and the block that leads by that."""
    bounds = np.empty(peaks.shape[0], np.float32)
    for block in range(peaks.shape[0]):
        weight = weight_of(peaks[block], top, scale)
        bounds[block] = weight if peaks[block] >= least else np.float32(0)
    earliest = np.empty(peaks.shape[0], np.float64)
    for block in range(peaks.shape[0]):
        # 1 - u <= -ln(u): no logarithm is needed for a bound.
        earliest[block] = 1 - uniform(key, base + np.uint64(block))
    for block in range(peaks.shape[0]):  # apart from the loops before, for each vectorises only by itself
        earliest[block] /= BLOCK * _SLACK * np.float64(bounds[block])
    favourite = 0
    for block in range(peaks.shape[0]):
        if earliest[block] < earliest[favourite]:
            favourite = block
    return earliest, favourite


@njit(fastmath=FASTMATH, nogil=True)
def _finish(logits: Any, block: int, top: Any, scale: Any, least: Any, end: Any, key: Any, base: Any) -> Any:
    """When a block finishes."""
    weight = np.float64(block_mass(logits, block, top, scale, least, end))
    return -math.log(uniform(key, base + np.uint64(block))) / weight if weight > 0 else np.inf


def race_reference(logits: np.ndarray, scale: float, least: float, end: Any, key: int, attempt: int) -> int:
    """The same in float64 numpy, with every block's weight computed."""
    ids = np.arange(len(logits))
    x = logits.astype(np.float64)
    weights = np.where((x > least) | ((x == least) & (ids < end)), np.exp((x - x.max()) * scale), 0.0)
    blocks = np.add.reduceat(weights, ids[::BLOCK])
    with np.errstate(divide="ignore"):
        block = int(np.argmin(_exponentials(key, attempt * 2**34 + 2**33 + np.arange(len(blocks))) / blocks))
        part = ids[block * BLOCK : (block + 1) * BLOCK]
        return int(part[np.argmin(_exponentials(key, attempt * 2**34 + part) / weights[part])])


def _exponentials(key: int, counters: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = np.uint64(key) + (counters + 1).astype(np.uint64) * _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * _MIX_1
        x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return -np.log((((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
