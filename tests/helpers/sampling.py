"""Chunks and logits for tests of the sampler, and the distribution that a draw must follow, by its definition in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mqlab.model.sampler import Sampler
from mqlab.plan import Chunk
from mqlab.types import SamplingParams


def chunk(
    seed: int = 0,
    index: int = 0,
    banned: tuple[int, ...] = (),
    mask: np.ndarray | None = None,
    history: Sequence[int] = (),
    num_prompt: int = 0,
    **params: Any,
) -> Chunk:
    """One request's row; ``params`` are SamplingParams."""
    asked = SamplingParams(**params)
    return Chunk("r", (0,), 0, (0,), True, asked, seed, index, banned, mask=mask, history=history, num_prompt=num_prompt)


def random_logits(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    """[rows, vocab] float32, normally distributed with deviation 2."""
    return 2 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def draws(logits: torch.Tensor, count: int, **asked: Any) -> list[int]:
    """``count`` draws of one row, as the tokens of one request; ``asked`` as for ``chunk``."""
    first = chunk(seed=42, **asked)
    chunks = [Chunk("r", (0,), 0, (0,), True, first.params, 42, i, first.banned, mask=first.mask) for i in range(count)]
    return list(Sampler()(logits.expand(count, -1).clone(), tuple(chunks)).tokens)


def bits(allowed: Sequence[int], vocab: int) -> np.ndarray:
    """A mask that allows these ids."""
    flags = np.zeros(-(-vocab // 32) * 32, bool)
    flags[list(allowed)] = True
    return np.packbits(flags, bitorder="little").view("<u4")


def exact(logits: np.ndarray, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> np.ndarray:
    """The distribution by its definition: temperature, min_p, top_k, then top_p on what is left. Ties go by id."""
    scaled = logits.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    p[p < min_p * p.max()] = 0
    order = np.lexsort((np.arange(len(p)), -logits))  # two logits may differ where their probabilities do not
    if 0 < top_k < len(p):
        p[order[top_k:]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    if top_p < 1:
        p[order[before >= top_p]] = 0
    return p / p.sum()


def on_a_boundary(logits: np.ndarray, top_p: float, **filters: Any) -> bool:
    """Whether a rounding error decides what top_p keeps."""
    sums = np.cumsum(np.sort(exact(logits, **filters))[::-1])
    return bool((np.abs(sums - top_p) < 1e-6).any())
