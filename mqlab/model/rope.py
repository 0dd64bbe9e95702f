"""Rotary position embedding: its settings in config.json, and its tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mqlab.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Rope:
    """How positions become angles.

    Attributes:
        theta: base of the frequencies.
        kind: default, linear (positions divided by ``factor``) or llama3 (low frequencies divided by it).
        low_freq_factor, high_freq_factor, original_len: where llama3 begins and ends to scale.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_len: int = 8192


_KINDS = ("default", "linear", "llama3")


def read_rope(config: dict[str, Any]) -> Rope:
    """The rope of config.json, in the form of transformers 5 (rope_parameters) or before (rope_theta, rope_scaling).

    Raises:
        ModelError: a kind that is not supported, or a value that is missing or of the wrong kind.
    """
    fields = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = fields.get("rope_type", fields.get("type", "default")) if isinstance(fields, dict) else fields
    if kind not in _KINDS:
        raise ModelError(f"rope type {kind!r} is not supported; pass a model whose rope is one of {', '.join(_KINDS)}")
    try:
        return _rope(kind, fields, float(fields.get("rope_theta") or config.get("rope_theta") or 10000.0))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"config.json has {kind} rope settings {fields!r}: {error!r}; download or save the model again") from error


def _rope(kind: str, fields: dict[str, Any], theta: float) -> Rope:
    if kind == "default":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(theta=theta, kind=kind, factor=float(fields["factor"]))
    return Rope(
        theta=theta,
        kind=kind,
        factor=float(fields["factor"]),
        low_freq_factor=float(fields["low_freq_factor"]),
        high_freq_factor=float(fields["high_freq_factor"]),
        original_len=int(fields["original_max_position_embeddings"]),
    )


def rope_tables(rope: Rope, head_dim: int, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin [length, head_dim / 2] float32, in the same float32 arithmetic as transformers."""
    frequencies = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    if rope.kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    angles = torch.arange(length).float()[:, None] * frequencies
    return angles.cos(), angles.sin()


def _llama3(frequencies: Tensor, rope: Rope) -> Tensor:
    """Long waves divided by the factor, short ones kept, those between blended. Source: Llama 3.1's published scaling rule."""
    wavelengths = 2 * math.pi / frequencies
    scaled = frequencies / rope.factor
    smooth = (rope.original_len / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * scaled + smooth * frequencies
    short, long = wavelengths < rope.original_len / rope.high_freq_factor, wavelengths > rope.original_len / rope.low_freq_factor
    return torch.where(long, scaled, torch.where(short, frequencies, blended))
