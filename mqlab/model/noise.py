"""Logits without a model, for what measures the sampler alone."""

from __future__ import annotations

import torch
from torch import Tensor


def normal_logits(rows: int, vocab: int, deviation: float, seed: int) -> Tensor:
    """[rows, vocab] float32, normally distributed around 0."""
    return deviation * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))
