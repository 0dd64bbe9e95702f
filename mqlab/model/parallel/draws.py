"""Draws of several ranks: rank 0 makes them, the others are told.

All ranks have the same logits, but what steers a request (masks, histories, parameters) is known to rank 0 alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mqlab.model.making import Group
from mqlab.model.sampler import Sampled
from mqlab.plan import Chunk

Draw = Callable[[Tensor, tuple[Chunk, ...]], Sampled]


def shared_draws(sampler: Draw, group: Group) -> Draw:
    """What makes tokens of logits on this rank."""
    if group.size == 1:
        return sampler
    return _Leading(sampler, group) if group.rank == 0 else _Following(group)


class _Leading:
    """Draws, and tells."""

    def __init__(self, sampler: Draw, group: Group) -> None:
        self._sampler = sampler
        self._group = group

    def __call__(self, logits: Tensor, chunks: tuple[Chunk, ...]) -> Sampled:
        sampled = self._sampler(logits, chunks)
        self._group.share(torch.tensor(sampled.tokens))
        return sampled


class _Following:
    """Is told. The logits were made for rank 0, which could not have made them alone."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def __call__(self, logits: Tensor, chunks: tuple[Chunk, ...]) -> Sampled:
        return Sampled(tuple(self._group.share(torch.zeros(len(chunks), dtype=torch.int64)).tolist()))
