"""One draw from a distribution over token ids, stable against rounding, on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


@njit(nogil=True, cache=True)
def race(weights: Any, tokens: Any, key: Any) -> int:
    """Index of the winner of an exponential race: the smallest -ln(u_i) / w_i, which token i wins with probability w_i / sum(w).

    Each token's number u_i depends on (key, token id) alone: SplitMix64 (Steele, Lea, Flood 2014) as a counter-based hash. A rounding
    error in the weights changes the winner only when the first two are that close, whereas in the inverse of a cumulative
    distribution it moves every boundary of a tail of tens of thousands of tokens.

    Args:
        weights: [n] float64, at least 0, not normalised; one of them above 0.
        tokens: [n] int64, the token ids.
        key: uint64.
    """
    winner, best = 0, np.inf
    for i in range(weights.shape[0]):
        weight = weights[i]
        x = key + np.uint64(tokens[i] + 1) * np.uint64(_GOLDEN)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_1)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_2)
        u = (np.float64((x ^ (x >> np.uint64(31))) >> np.uint64(11)) + 0.5) * 2.0**-53
        # -ln(u) >= 1 - u: most tokens lose without a logarithm.
        if weight > 0.0 and 1.0 - u < best * weight:
            finish = -np.log(u) / weight
            if finish < best:
                winner, best = i, finish
    return winner


def race_reference(weights: np.ndarray, tokens: np.ndarray, key: int) -> int:
    """The same in float64 numpy."""
    with np.errstate(over="ignore", divide="ignore"):
        x = np.uint64(key) + (tokens + 1).astype(np.uint64) * np.uint64(_GOLDEN)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_1)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_2)
        u = (((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return int(np.argmin(-np.log(u) / weights))
