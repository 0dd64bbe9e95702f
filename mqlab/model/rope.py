"""Rotary position embedding: its settings in config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mqlab.errors import ModelError
from mqlab.model.fields import count

KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, kw_only=True)
class Rope:
    """How positions become angles.

    Attributes:
        theta: base of the frequencies.
        kind: default, linear (positions divided by ``factor``), llama3 or yarn (low frequencies divided by it).
        original_len: the context that the model was first trained on.
        low_freq_factor, high_freq_factor: llama3: where it begins and ends to scale, in rotations over that context.
        beta_slow, beta_fast: yarn: likewise.
        truncate: yarn: these bounds fall on whole dimensions.
        attention_factor: of cosines and sines.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_len: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_slow: float = 1.0
    beta_fast: float = 32.0
    truncate: bool = True
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if not (self.theta > 1 and self.factor > 0 and self.original_len > 0):
            raise ValueError(f"theta={self.theta} must be above 1, factor={self.factor} and original_len={self.original_len} above 0")


def rope_fields(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Kind and settings, in the form of transformers 5 (rope_parameters) or before (rope_scaling).

    Raises:
        ModelError: they are not one set of settings, or two that differ.
    """
    new, old = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    fields = new or old
    if new and old and new != old:
        raise ModelError(f"config.json has rope_parameters={new!r} and rope_scaling={old!r}, which differ; keep the one that is meant")
    if not isinstance(fields, dict) or any(isinstance(value, dict) for value in fields.values()):
        raise ModelError(f"config.json has rope settings {fields!r}, which must be one set of fields; download or save the model again")
    return fields.get("rope_type") or fields.get("type") or "default", fields


def read_rope(config: Mapping[str, Any]) -> Rope:
    """The rope of config.json.

    Raises:
        ModelError: a value that is missing or of the wrong kind.
    """
    kind, fields = rope_fields(config)
    try:
        return _rope(kind, fields, float(fields.get("rope_theta") or config.get("rope_theta") or 10000.0), _original_len(config, fields))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"config.json has {kind} rope settings {fields!r}: {error!r}; download or save the model again") from error


def context_length(config: Mapping[str, Any]) -> int:
    """Positions that the weights were made for: with yarn, what it stretches the original context to where that is more."""
    limit = count(config, "max_position_embeddings")
    rope = read_rope(config)
    return max(limit, int(rope.original_len * rope.factor)) if rope.kind == "yarn" else limit


def _original_len(config: Mapping[str, Any], fields: Mapping[str, Any]) -> int:
    field = "original_max_position_embeddings"
    return int(config.get(field) or fields.get(field) or count(config, "max_position_embeddings"))


def _rope(kind: str, fields: Mapping[str, Any], theta: float, original_len: int) -> Rope:
    if kind == "default":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(theta=theta, kind=kind, factor=float(fields["factor"]))
    if kind == "yarn":
        return Rope(
            theta=theta,
            kind=kind,
            factor=float(fields["factor"]),
            original_len=original_len,
            beta_slow=float(fields.get("beta_slow") or 1),
            beta_fast=float(fields.get("beta_fast") or 32),
            truncate=bool(fields.get("truncate", True)),
            attention_factor=_yarn_attention(fields),
        )
    return Rope(
        theta=theta,
        kind=kind,
        factor=float(fields["factor"]),
        original_len=original_len,
        low_freq_factor=float(fields["low_freq_factor"]),
        high_freq_factor=float(fields["high_freq_factor"]),
    )


def _yarn_attention(fields: Mapping[str, Any]) -> float:
    """Given, or the paper's 0.1 ln(factor) + 1; DeepSeek's two mscales are a ratio of such."""
    if fields.get("attention_factor") is not None:
        return float(fields["attention_factor"])
    growth = 0.1 * math.log(max(1.0, float(fields["factor"])))
    above, below = fields.get("mscale"), fields.get("mscale_all_dim")
    return (growth * above + 1) / (growth * below + 1) if above and below else growth + 1
