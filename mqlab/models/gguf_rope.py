"""Rotary settings of a GGUF file as transformers' rope_parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mqlab.models.gguf_metadata import Metadata

FREQUENCIES = "rope_freqs.weight"
"""A tensor of divisors, one per frequency: how llama.cpp stores the long-context scaling of Llama 3."""

_LOW, _HIGH, _ORIGINAL_LEN = 1.0, 4.0, 8192
_YARN_NEUTRAL = {"yarn_ext_factor": 1.0, "attn_factor": 1.0, "yarn_attn_factor": 1.0, "yarn_log_multiplier": 0.0}


def rope_parameters(meta: Metadata, head_dim: int, *, partial: bool) -> dict[str, Any]:
    """What transformers (5.24) needs to turn positions into angles as llama.cpp does with this file.

    Args:
        meta: the file.
        head_dim: of keys.
        partial: whether a part of each head may be rotated.

    Raises:
        ModelError: a scaling that transformers has no name for, or a part of each head where that may not be.
    """
    rotated = meta.own("rope.dimension_count", head_dim)
    if rotated != head_dim and not partial:
        raise meta.refuse(f"rotates {rotated} of the {head_dim} dimensions of its heads")
    theta = meta.decimal("rope.freq_base", 10000.0)
    scaling = _scaling(meta)
    divisors = meta.tensors[FREQUENCIES].data if FREQUENCIES in meta.tensors else np.ones(rotated // 2, np.float32)
    if np.any(divisors != 1):
        if scaling["rope_type"] != "default":
            raise meta.refuse(f"scales its rotary positions twice ({scaling['rope_type']} and {FREQUENCIES})")
        scaling = _llama3(meta, theta, rotated, divisors)
    return {"rope_theta": theta, **scaling, **({"partial_rotary_factor": rotated / head_dim} if partial else {})}


def _scaling(meta: Metadata) -> dict[str, Any]:
    """The kind that the metadata name. A factor without a kind is linear; 0 or 1 scale nothing (llama.cpp, load_hparams)."""
    factor = meta.decimal("rope.scaling.factor", meta.own("rope.scale_linear", 0.0))
    kind = meta.own("rope.scaling.type", "linear")
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return {"rope_type": "default"}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise meta.refuse(f"scales its rotary positions by {kind!r}")
    return _yarn(meta, factor)


def _yarn(meta: Metadata, factor: float) -> dict[str, Any]:
    for name, neutral in _YARN_NEUTRAL.items():
        if not math.isclose(value := meta.own(f"rope.scaling.{name}", neutral), neutral, abs_tol=1e-6):
            raise meta.refuse(f"scales its rotary positions by 'yarn' with {name} {value:g}")
    original = meta.own("rope.scaling.original_context_length", meta.own("context_length"))
    betas = {f"beta_{end}": meta.own(f"rope.scaling.yarn_beta_{end}", None) for end in ("fast", "slow")}
    given = {name: value for name, value in betas.items() if value is not None}
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **given}


def _llama3(meta: Metadata, theta: float, rotated: int, divisors: np.ndarray) -> dict[str, Any]:
    """The rule of Llama 3.1 and later, if these are its divisors: its factor is the greatest of them."""
    factor = float(np.max(divisors))
    if divisors.shape != (rotated // 2,) or not np.allclose(divisors, llama3_divisors(theta, rotated, factor), rtol=1e-4):
        raise meta.refuse(f"has {FREQUENCIES} that do not follow Llama 3's rule (original context {_ORIGINAL_LEN}, low 1, high 4)")
    limits = {"low_freq_factor": _LOW, "high_freq_factor": _HIGH, "original_max_position_embeddings": _ORIGINAL_LEN}
    return {"rope_type": "llama3", "factor": factor, **limits}


def llama3_divisors(theta: float, rotated: int, factor: float) -> np.ndarray:
    """What Llama 3.1's published rule divides each frequency by, float64 [rotated / 2]: short waves by 1, long ones by ``factor``."""
    waves = 2 * np.pi * theta ** (np.arange(0, rotated, 2) / rotated)
    smooth = np.clip((_ORIGINAL_LEN / waves - _LOW) / (_HIGH - _LOW), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)
