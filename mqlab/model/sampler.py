"""Logits become tokens. A draw depends on the request's own logits, parameters, seed and output index, on nothing else."""

from __future__ import annotations

import numpy as np
import torch
from mqlab_kernels.race_cpu import race
from torch import Tensor

from mqlab.plan import Chunk
from mqlab.types import SamplingParams

_FIRST_CANDIDATES = 256
_MASK = 2**64 - 1


def sample(logits: Tensor, chunks: tuple[Chunk, ...]) -> tuple[int, ...]:
    """One token a row.

    Args:
        logits: [S, vocab] float32; banned tokens are masked in place.
        chunks: the S chunks that the rows belong to.

    Raises:
        RuntimeError: a row's largest logit is not a number, or not finite (NaN from the model, or every token banned).
    """
    for row, chunk in enumerate(chunks):
        if chunk.banned:
            logits[row, list(chunk.banned)] = -torch.inf
    rows = logits.numpy()
    likeliest = rows.argmax(-1)  # the first NaN where there is one
    tops = rows[np.arange(len(chunks)), likeliest]
    _check_finite(tops, chunks)
    return tuple(
        int(best) if chunk.params.greedy else _draw(logits[row], float(top), chunk)
        for row, (chunk, best, top) in enumerate(zip(chunks, likeliest, tops, strict=True))
    )


def noise_key(seed: int, index: int) -> int:
    """64 bits that depend on (seed, index) alone: SplitMix64 (Steele, Lea, Flood 2014) as a counter-based hash."""
    return _splitmix(_splitmix(seed) ^ index)


def _splitmix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _check_finite(tops: np.ndarray, chunks: tuple[Chunk, ...]) -> None:
    for chunk, top in zip(chunks, tops, strict=True):
        if not np.isfinite(top):
            where = f"request {chunk.id!r}, output {chunk.output_index}"
            raise RuntimeError(f"{where}: the largest logit is {top}; the model's weights are broken, or every token was banned")


def _draw(logits: Tensor, top: float, chunk: Chunk) -> int:
    """The winner of a race with the chunk's own noise. Rounding that depends on the batch hardly ever changes it."""
    # The largest becomes 0 before the division, so that no temperature overflows.
    scaled = (logits.double() - top) / chunk.params.temperature
    weights, tokens = _candidates(scaled, chunk.params)
    ids = tokens.numpy()
    return int(ids[race(weights.numpy(), ids, np.uint64(noise_key(chunk.seed, chunk.output_index)))])


def _candidates(scaled: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Unnormalised weights of the tokens that remain, and their ids. top_k first, top_p on what it leaves."""
    vocab = len(scaled)
    if 1 <= params.top_k < vocab:
        values, tokens = scaled.topk(params.top_k)
        return _keep_top_p(values.exp(), tokens, params.top_p)
    if params.top_p >= 1:
        return scaled.exp(), torch.arange(vocab)
    return _nucleus(scaled, params.top_p)


def _nucleus(scaled: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """top_p over the whole vocabulary, sorting no more of it than needed."""
    total = float(scaled.exp().sum())
    count = min(_FIRST_CANDIDATES, len(scaled))
    while True:
        values, tokens = scaled.topk(count)
        weights = values.exp()
        if count == len(scaled) or float(weights.sum()) >= top_p * total:
            return _keep_top_p(weights, tokens, top_p, total)
        count = min(count * 8, len(scaled))


def _keep_top_p(weights: Tensor, tokens: Tensor, top_p: float, total: float | None = None) -> tuple[Tensor, Tensor]:
    """The smallest set with this share of the total; the likeliest always stays. ``weights`` descend."""
    if top_p >= 1:
        return weights, tokens
    share = top_p * (float(weights.sum()) if total is None else total)
    before = weights.cumsum(0) - weights
    kept = max(1, int((before < share).sum()))
    return weights[:kept], tokens[:kept]
