"""From logits to tokens on a GPU: greedy, or temperature, min_p, top_k, top_p and a draw, for each row as its parameters say.

Two launches, whose grids depend on shapes alone. The first looks at every logit, many programs a row: it leaves, of each block of 64
tokens, the largest logit, the sum of its weights and when it finishes in the race (race_cpu.py). The second, a program a row, decides from
those: a row that is greedy or has no filter reads one block of logits more. Filters read just the blocks whose largest logit is large
enough: top_k bisects the bits of floats among them, and top_p is a rejection (FlashInfer, 2025), for the pass that sums the weights before
a token is also the next race. Nothing is sorted, and rows without filters pay nothing for those with.
"""

# A function of Triton has no type of what it returns.
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mqlab_kernels.capability import capability
from mqlab_kernels.kernel import Config, Kernel
from mqlab_kernels.race import (
    ALL,
    ATTEMPT,
    BLOCK,
    FIRST_BLOCK,
    exponential,
    finish_of,
    inside,
    key_of,
    logit_of,
    noise_key,
    scale_of,
    weight_of,
)
from mqlab_kernels.sample_cases import cases
from mqlab_kernels.sample_reference import INFINITE, MASKED, NOT_A_NUMBER, sample_reference

__all__ = ["INFINITE", "KERNELS", "MASKED", "NOT_A_NUMBER", "sample", "sample_reference"]

_MASKED, _NOT_A_NUMBER, _INFINITE = tl.constexpr(MASKED), tl.constexpr(NOT_A_NUMBER), tl.constexpr(INFINITE)


@triton.jit
def survey_kernel(logits, temperatures, seeds, indices, peaks, masses, finishes, vocab, width, stride, TILE: tl.constexpr):
    """Of TILE blocks of a row: the largest logit (NaN where there is one), and if it is drawn, weight and finish for a top as large."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * TILE + tl.arange(0, TILE)
    token = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(logits + row * stride + token, mask=token < vocab, other=-float("inf")).to(tl.float32)
    peak = tl.max(tl.where(x == x, x, -float("inf")), 1)
    broken = tl.max((x != x).to(tl.int32), 1) > 0
    at, real = row * width + block, block < width
    tl.store(peaks + at, tl.where(broken, float("nan"), peak), mask=real)
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        base = tl.where(tl.abs(peak) < float("inf"), peak, 0.0)
        mass = tl.sum(weight_of(x, base[:, None], scale_of(temperature)), 1)
        noise = exponential(noise_key(tl.load(seeds + row), tl.load(indices + row)), block.to(tl.int64) + FIRST_BLOCK)
        tl.store(masses + at, mass, mask=real)
        tl.store(finishes + at, finish_of(noise, mass).to(tl.float32), mask=real)


@triton.jit
def draw_kernel(
    logits, temperatures, top_ks, top_ps, min_ps, seeds, indices, peaks, masses, finishes, lists, out, vocab, width, stride,
    TILE: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """The token of a row, from what the survey left; ``lists`` has room for the numbers of its blocks."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    peaks, masses, finishes, lists = peaks + row * width, masses + row * width, finishes + row * width, lists + row * width
    top, lowest, broken = _extremes(peaks, vocab, width, SPAN)
    temperature = tl.load(temperatures + row)
    token = tl.full((), _MASKED, tl.int32)
    if broken:
        token = tl.full((), _NOT_A_NUMBER, tl.int32)
    elif top == float("inf"):
        token = tl.full((), _INFINITE, tl.int32)
    elif top > -float("inf"):
        if temperature > 0:
            scale = scale_of(temperature)
            key = noise_key(tl.load(seeds + row), tl.load(indices + row))
            least = _floor(top, temperature, tl.load(min_ps + row))
            end = tl.full((), ALL, tl.int32)
            k = tl.load(top_ks + row).to(tl.int32)
            if (k > 0) & (k < vocab):
                kth, kth_end = _top_k(logits, peaks, lists, k, lowest, top, vocab, width, TILE, SPAN)
                if kth >= least:
                    least, end = kth, kth_end
            token = _draw(
                logits, peaks, masses, finishes, lists, top, scale, least, end, tl.load(top_ps + row), key, vocab, width, TILE, SPAN
            )
        else:
            token = _likeliest(logits, peaks, top, vocab, width, SPAN)
    tl.store(out + row, token.to(tl.int64))


@triton.jit
def _extremes(peaks, vocab, width, SPAN: tl.constexpr):
    """The largest and the smallest peak, and whether one is not a number."""
    tops = tl.full((SPAN,), -float("inf"), tl.float32)
    lowests = tl.full((SPAN,), float("inf"), tl.float32)
    broken = tl.zeros((SPAN,), tl.int32)
    for start in range(0, width, SPAN):
        block = start + tl.arange(0, SPAN)
        peak = tl.load(peaks + block, mask=block < width, other=-float("inf"))
        sound = peak == peak
        broken |= (peak != peak).to(tl.int32)
        tops = tl.maximum(tops, tl.where(sound, peak, -float("inf")))
        lowests = tl.minimum(lowests, tl.where(sound & (block * BLOCK < vocab), peak, float("inf")))
    return tl.max(tops, 0), tl.min(lowests, 0), tl.max(broken, 0) > 0


@triton.jit
def _likeliest(logits, peaks, top, vocab, width, SPAN: tl.constexpr):
    """The lowest id among the largest logits."""
    best = tl.full((SPAN,), ALL, tl.int32)
    for start in range(0, width, SPAN):
        block = start + tl.arange(0, SPAN)
        peak = tl.load(peaks + block, mask=block < width, other=-float("inf"))
        best = tl.minimum(best, tl.where(peak == top, block, ALL))
    token = tl.min(best, 0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + token, mask=token < vocab, other=-float("inf")).to(tl.float32)
    return tl.min(tl.where(x == top, token, ALL), 0)


@triton.jit
def _floor(top, temperature, ratio):
    """The least float32 logit with at least this ratio to the likeliest token's probability."""
    floor = tl.full((), -float("inf"), tl.float32)
    if ratio > 0:
        exact = top.to(tl.float64) + temperature.to(tl.float64) * tl.log(ratio.to(tl.float64))
        floor = exact.to(tl.float32)
        if floor.to(tl.float64) < exact:
            floor = logit_of(key_of(floor) + 1)
    return floor


@triton.jit
def _list(peaks, lists, least, width, SPAN: tl.constexpr):
    """How many blocks hold a logit as large as this; ``lists`` gets their numbers, ascending."""
    count = tl.full((), 0, tl.int32)
    tl.debug_barrier()  # who still reads the list before
    for start in range(0, width, SPAN):
        block = start + tl.arange(0, SPAN)
        alive = (tl.load(peaks + block, mask=block < width, other=-float("inf")) >= least) & (block < width)
        place = count + tl.cumsum(alive.to(tl.int32), 0) - 1
        tl.store(lists + place, block, mask=alive)
        count += tl.sum(alive.to(tl.int32), 0)
    tl.debug_barrier()
    return count


@triton.jit
def _tile(logits, lists, start, count, vocab, TILE: tl.constexpr):
    """Of TILE of the listed blocks: their numbers [TILE], tokens [TILE, BLOCK] and logits, -inf where there is none."""
    place = start + tl.arange(0, TILE)
    block = tl.load(lists + place, mask=place < count, other=0)
    token = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(logits + token, mask=(place < count)[:, None] & (token < vocab), other=-float("inf")).to(tl.float32)
    return block, token, x


@triton.jit
def _count(logits, lists, count, bound, vocab, TILE: tl.constexpr):
    """How many logits of the listed blocks reach this, which is above -inf."""
    reached = tl.zeros((TILE, BLOCK), tl.int32)
    for start in range(0, count, TILE):
        _, _, x = _tile(logits, lists, start, count, vocab, TILE)
        reached += (x >= bound).to(tl.int32)
    return tl.sum(tl.sum(reached, 1), 0)


@triton.jit
def _count_peaks(peaks, bound, width, SPAN: tl.constexpr):
    """How many peaks reach this."""
    reached = tl.zeros((SPAN,), tl.int32)
    for start in range(0, width, SPAN):
        block = start + tl.arange(0, SPAN)
        reached += (tl.load(peaks + block, mask=block < width, other=-float("inf")) >= bound).to(tl.int32)
    return tl.sum(reached, 0)


@triton.jit
def _about_k(peaks, k, lowest, top, vocab, width, SPAN: tl.constexpr):
    """A logit that at least k tokens reach, and hardly more blocks; -inf where k is no smaller than the number of blocks."""
    least = tl.full((), -float("inf"), tl.float32)
    slack, blocks = k // 8, tl.cdiv(vocab, BLOCK)
    if k + slack < blocks:
        low, high, reached = key_of(lowest), key_of(top), blocks
        while (low < high) & (reached > k + slack):
            middle = (low + high + 1) >> 1
            count = _count_peaks(peaks, logit_of(middle), width, SPAN)
            if count >= k:
                low, reached = middle, count
            else:
                high = middle - 1
        least = logit_of(low)
    return least


@triton.jit
def _top_k(logits, peaks, lists, k, lowest, top, vocab, width, TILE: tl.constexpr, SPAN: tl.constexpr):
    """The limit (least, end) that keeps the k likeliest, 0 < k < vocab."""
    about = _about_k(peaks, k, lowest, top, vocab, width, SPAN)
    count = _list(peaks, lists, about, width, SPAN)
    low, high, reached = key_of(about), key_of(top), tl.full((), ALL, tl.int32)
    while (low < high) & (reached != k):
        middle = (low + high + 1) >> 1
        number = _count(logits, lists, count, logit_of(middle), vocab, TILE)
        if number >= k:
            low, reached = middle, number
        else:
            high = middle - 1
    least, end = logit_of(low), tl.full((), ALL, tl.int32)
    if (reached != k) & (least > -float("inf")):
        ties = k - _count(logits, lists, count, logit_of(low + 1), vocab, TILE)
        end = _end_of_ties(logits, lists, count, least, ties, vocab, TILE)
    return least, end


@triton.jit
def _end_of_ties(logits, lists, count, logit, ties, vocab, TILE: tl.constexpr):
    """The limit's ``end`` that keeps this many, at least one, of the listed tokens with just this logit."""
    before, home, left = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    for start in range(0, count, TILE):
        block, _, x = _tile(logits, lists, start, count, vocab, TILE)
        equal = tl.sum((x == logit).to(tl.int32), 1)
        reached = before + tl.cumsum(equal, 0)
        here = (reached >= ties) & (reached - equal < ties)
        home += tl.sum(tl.where(here, block, 0), 0)
        left += tl.sum(tl.where(here, ties - (reached - equal), 0), 0)
        before += tl.sum(equal, 0)
    token = home * BLOCK + tl.arange(0, BLOCK)
    equal = tl.load(logits + token, mask=token < vocab, other=-float("inf")).to(tl.float32) == logit
    last = equal & (tl.cumsum(equal.to(tl.int32), 0) == left)
    return tl.sum(tl.where(last, token + 1, 0), 0)


@triton.jit
def _draw(logits, peaks, masses, finishes, lists, top, scale, least, end, p, key, vocab, width, TILE: tl.constexpr, SPAN: tl.constexpr):
    """One token within a limit. One that top_p excludes is rejected, and with it those behind it from the next race on."""
    base = tl.full((), 0, tl.int64)
    if least > -float("inf"):
        block, total = _race(logits, peaks, lists, top, scale, least, end, key, base, vocab, width, TILE, SPAN)
    else:
        block, total = _race_of_all(peaks, masses, finishes, top, scale, width, SPAN)
    token = _race_of_tokens(logits, block, top, scale, least, end, key, base, vocab)
    if p < 1:
        share = p.to(tl.float64) * total
        rejected = True
        while rejected:
            base += ATTEMPT
            logit = tl.load(logits + token).to(tl.float32)
            block, before = _race(logits, peaks, lists, top, scale, logit, token, key, base, vocab, width, TILE, SPAN)
            rejected = (before >= share) & (before > 0)
            if rejected:
                token = _race_of_tokens(logits, block, top, scale, logit, token, key, base, vocab)
    return token


@triton.jit
def _race_of_all(peaks, masses, finishes, top, scale, width, SPAN: tl.constexpr):
    """The block that wins the first race without a limit, and the sum of all weights."""
    best = tl.full((SPAN,), float("inf"), tl.float32)
    winner = tl.full((SPAN,), ALL, tl.int32)
    total = tl.zeros((SPAN,), tl.float64)
    for start in range(0, width, SPAN):
        block = start + tl.arange(0, SPAN)
        share = weight_of(tl.load(peaks + block, mask=block < width, other=-float("inf")), top, scale)
        total += (share * tl.load(masses + block, mask=block < width, other=0.0)).to(tl.float64)
        finish = tl.load(finishes + block, mask=block < width, other=float("inf"))
        finish = tl.where(share > 0, finish / tl.where(share > 0, share, 1.0), float("inf"))
        winner = tl.where(finish < best, block, winner)
        best = tl.minimum(best, finish)
    first = tl.min(best, 0)
    return tl.min(tl.where(best == first, winner, ALL), 0), tl.sum(total, 0)


@triton.jit
def _race(logits, peaks, lists, top, scale, least, end, key, base, vocab, width, TILE: tl.constexpr, SPAN: tl.constexpr):
    """The block that wins within a limit whose ``least`` is above -inf, and the sum of the weights there."""
    count = _list(peaks, lists, least, width, SPAN)
    best, winner, total = tl.full((), float("inf"), tl.float64), tl.full((), 0, tl.int32), tl.full((), 0.0, tl.float64)
    for start in range(0, count, TILE):
        block, token, x = _tile(logits, lists, start, count, vocab, TILE)
        mass = tl.sum(tl.where(inside(x, token, least, end), weight_of(x, top, scale), 0.0), 1)
        finish = finish_of(exponential(key, base + FIRST_BLOCK + block), mass)
        first = tl.min(finish, 0)
        winner = tl.where(first < best, tl.min(tl.where(finish == first, block, ALL), 0), winner)
        best = tl.minimum(best, first)
        total += tl.sum(mass.to(tl.float64), 0)
    return winner, total


@triton.jit
def _race_of_tokens(logits, block, top, scale, least, end, key, base, vocab):
    """The token of a block that wins within a limit."""
    token = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + token, mask=token < vocab, other=-float("inf")).to(tl.float32)
    weight = tl.where(inside(x, token, least, end) & (token < vocab), weight_of(x, top, scale), 0.0)
    finish = finish_of(exponential(key, base + token), weight)
    return tl.min(tl.where(finish == tl.min(finish, 0), token, ALL), 0)


def sample(
    logits: Tensor,
    temperatures: Tensor,
    top_ks: Tensor,
    top_ps: Tensor,
    min_ps: Tensor,
    seeds: Tensor,
    indices: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """One token a row: a function of the row's logits and parameters alone, the same as draw_cpu.py gives up to rounding.

    Args:
        logits: [S, vocab] float32, or bfloat16 or float16, its rows dense.
        temperatures: [S] float32 or float64; 0 takes the likeliest, the lowest id among equals.
        top_ks: [S] int32 or int64, how many of the likeliest are kept; 0 or less, or the whole vocabulary, keep all.
        top_ps: [S] float32 or float64, the share that is kept of what the others leave; 1 for all.
        min_ps: [S] float32 or float64, tokens at least this likely in relation to the likeliest are kept; 0 for all.
        seeds: [S] int64, the bits of a uint64; with ``indices`` [S] int64 all that the noise depends on.
        out: [S] int64, written.

    Returns:
        [S] int64: a token, or MASKED, NOT_A_NUMBER or INFINITE.

    Raises:
        ValueError: the rows of ``logits`` are not dense.
    """
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError("sample takes logits whose rows are dense; call contiguous() on what is transposed")
    out = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    if rows == 0:
        return out
    # A multiple of 16 blocks, that rows begin where wide loads may.
    width = -(-vocab // (16 * BLOCK.value)) * 16
    peaks, masses, finishes = torch.empty((3, rows, width), dtype=torch.float32, device=logits.device)
    lists = torch.empty((rows, width), dtype=torch.int32, device=logits.device)
    target = capability(logits.device)
    surveying, drawing = choose_survey({}, target), choose_draw({}, target)
    survey_kernel[rows, triton.cdiv(width, surveying.constants["TILE"])](
        logits, temperatures, seeds, indices, peaks, masses, finishes, vocab, width, logits.stride(0), **surveying.options
    )
    draw_kernel[(rows,)](
        logits, temperatures, top_ks, top_ps, min_ps, seeds, indices, peaks, masses, finishes, lists, out, vocab, width, logits.stride(0),
        **drawing.options,
    )  # fmt: skip
    return out


SURVEY_SWEEP = tuple(
    Config(constants={"TILE": tile}, num_warps=warps, num_stages=1) for tile, warps in ((16, 4), (32, 4), (32, 8), (64, 4), (64, 8))
)
DRAW_SWEEP = tuple(
    Config(constants={"TILE": tile, "SPAN": span}, num_warps=warps, num_stages=1)
    for tile, span, warps in ((32, 1024, 4), (32, 1024, 8), (64, 1024, 8), (64, 2048, 8), (64, 2048, 16), (128, 2048, 16))
)


def choose_survey(constants: Mapping[str, Any], capability: int) -> Config:
    """The shipped config: 2,048 logits a program, 16 a thread, so that a row is the work of many and each SM holds several."""
    return SURVEY_SWEEP[1]


def choose_draw(constants: Mapping[str, Any], capability: int) -> Config:
    """The shipped config: one tile holds the blocks of the usual 40 or 50 likeliest tokens, one span the peaks of 131,072."""
    return DRAW_SWEEP[3]


KERNELS = (
    Kernel(name="sample_survey", function=survey_kernel, cases=cases(drawing=False), sweep=SURVEY_SWEEP, choose=choose_survey),
    Kernel(name="sample_draw", function=draw_kernel, cases=cases(drawing=True), sweep=DRAW_SWEEP, choose=choose_draw),
)
"""What this file compiles."""
