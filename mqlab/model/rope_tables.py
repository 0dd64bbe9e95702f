"""Rotary position embedding: its tables."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mqlab.model.rope import Rope


def rope_tables(rope: Rope, rotary_dim: int, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin [length, rotary_dim / 2] float32, in the same float32 arithmetic as transformers."""
    frequencies = 1.0 / rope.theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim)
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    if rope.kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    if rope.kind == "yarn":
        frequencies = _yarn(frequencies, rope, rotary_dim)
    angles = torch.arange(length).float()[:, None] * frequencies
    return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


def _llama3(frequencies: Tensor, rope: Rope) -> Tensor:
    """Long waves divided by the factor, short ones kept, those between blended. Source: Llama 3.1's published scaling rule."""
    wavelengths = 2 * math.pi / frequencies
    scaled = frequencies / rope.factor
    smooth = (rope.original_len / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * scaled + smooth * frequencies
    short, long = wavelengths < rope.original_len / rope.high_freq_factor, wavelengths > rope.original_len / rope.low_freq_factor
    return torch.where(long, scaled, torch.where(short, frequencies, blended))


def _yarn(frequencies: Tensor, rope: Rope, dim: int) -> Tensor:
    """As llama3, but blended evenly over the dimensions between. Source: YaRN, arXiv 2309.00071, section 3.2."""

    def dimension(rotations: float) -> float:
        """Which dimension turns that often over the original context."""
        return dim * math.log(rope.original_len / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    share = ((torch.arange(dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies / rope.factor * share + frequencies * (1 - share)
