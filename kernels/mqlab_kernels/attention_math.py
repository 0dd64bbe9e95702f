"""What the attention kernels share: scores whose weights are powers of two, and the soft cap."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
"""exp(x) = exp2(LOG2_E * x), and exp2 is one instruction."""


@triton.jit
def soft_cap(scores, scale, softcap):
    """softcap * tanh(scale * scores / softcap). Source: Gemma 2.

    By the exponential of what is never positive: it cannot overflow, however large the scores.
    """
    shrunk = tl.exp2(tl.abs(scores) * (scale * -2 * LOG2_E / softcap))
    bent = softcap * (1 - shrunk) / (1 + shrunk)
    return tl.where(scores < 0, -bent, bent)
