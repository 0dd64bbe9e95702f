"""The race of race_cpu.py as functions of a Triton program: the same hash, the same numbers, and so the same winners up to rounding."""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = tl.constexpr(64)
"""Tokens a block, as in peaks_cpu.py: the winners depend on it."""

FIRST_BLOCK = tl.constexpr(2**33)
"""The counter of block 0: tokens count from 0."""

ATTEMPT = tl.constexpr(2**34)
"""Counters are this much further with each attempt."""

LEAST = tl.constexpr(-87.0)
"""Below it, a weight is 0."""

ALL = tl.constexpr(2**31 - 1)
"""As a limit's ``end``: no id is too large."""

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_UNIT = tl.constexpr(2.0**-53)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * _MIX_1
    x = (x ^ (x >> 27)) * _MIX_2
    return x ^ (x >> 31)


@triton.jit
def noise_key(seed, index):
    """64 bits that depend on (seed, index) alone: SplitMix64 (Steele, Lea, Flood 2014) as a counter-based hash."""
    return _mix((_mix(seed.to(tl.uint64) + _GOLDEN) ^ index.to(tl.uint64)) + _GOLDEN)


@triton.jit
def exponential(key, counter):
    """-ln(u) in float64, u in (0, 1) being a number that depends on (key, counter) alone."""
    x = _mix(key + (counter.to(tl.uint64) + 1) * _GOLDEN)
    return -tl.log(((x >> 11).to(tl.float64) + 0.5) * _UNIT)


@triton.jit
def scale_of(temperature):
    """1 / temperature, float32."""
    return (1.0 / temperature.to(tl.float64)).to(tl.float32)


@triton.jit
def weight_of(logit, top, scale):
    """exp((logit - top) * scale), 0 where that is next to nothing; ``top`` is finite."""
    z = (logit - top) * scale
    return tl.where(z > LEAST, tl.exp(z), 0.0)


@triton.jit
def finish_of(noise, weight):
    """When who weighs this finishes, float64."""
    heavy = weight > 0
    return tl.where(heavy, noise / tl.where(heavy, weight, 1.0).to(tl.float64), float("inf"))


@triton.jit
def inside(logit, token, least, end):
    """Whether a token is within a limit (race_cpu.py)."""
    return (logit > least) | ((logit == least) & (token < end))


@triton.jit
def key_of(logit):
    """The bits of a float32, as int64, turned so that integers compare as the numbers do."""
    bits = logit.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def logit_of(key):
    """The float32 with this key."""
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
