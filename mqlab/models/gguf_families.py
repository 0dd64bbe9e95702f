"""How llama.cpp stores each model class that is read from GGUF: tensor names, and what its converter did to values.

Names and value changes are those of llama.cpp's convert_hf_to_gguf.py; a name that appears nowhere below is refused, since a
tensor that is left out would make the model compute something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mqlab.models.gguf_metadata import Metadata

Names = Mapping[str, str]
"""llama.cpp's tensor names (inside a layer: without ``blk.N.``) to transformers'."""

Restore = Callable[[np.ndarray, Mapping[str, Any]], np.ndarray]
"""Undoes what the converter did to a tensor's values; the mapping is config.json."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture of llama.cpp as a class of transformers.

    Attributes:
        hf_class, model_type: as config.json names them.
        outer: tensors outside the layers.
        inner: tensors of every layer.
        head: transformers' name of the output matrix, where it is not the embedding.
        layers: what transformers puts before a layer's number.
        switches: fields of config.json that are true where a file holds the tensors with these names.
        restore: by llama.cpp's name without its suffix.
        settings: the fields of config.json that not all families have.
        partial_rotary: whether transformers' class can rotate a part of each head.
    """

    hf_class: str
    model_type: str
    inner: Names
    settings: Callable[[Metadata], dict[str, Any]]
    outer: Names = field(default_factory=lambda: _OUTER)
    head: str = "lm_head.weight"
    layers: str = "model.layers"
    switches: Mapping[str, Names] = field(default_factory=dict)
    restore: Mapping[str, Restore] = field(default_factory=dict)
    partial_rotary: bool = False


def _named(stems: Names, *suffixes: str) -> dict[str, str]:
    return {f"{ours}.{suffix}": f"{theirs}.{suffix}" for ours, theirs in stems.items() for suffix in suffixes}


_OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_QKV = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}
_ATTENTION = {**_QKV, "attn_output": "self_attn.o_proj"}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA2_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_NEOX = {
    **_NORMS,
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a projection [heads * head_dim, ...] from llama.cpp's rotary order to transformers'.

    llama.cpp turns neighbouring pairs of a Llama's rows, transformers the two halves of a head (LlamaModel.permute).
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _interleave(rows: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """GPT-NeoX: all queries, all keys, all values to query, key and value head by head."""
    heads = config["num_attention_heads"]
    parts = rows.reshape(3, heads, rows.shape[0] // heads // 3, *rows.shape[1:])
    return parts.swapaxes(0, 1).reshape(rows.shape)


def _minus_one(weight: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Gemma multiplies by 1 + weight; llama.cpp stores that sum."""
    return weight - np.float32(1)


def _gated(meta: Metadata) -> dict[str, Any]:
    """Grouped heads, RMS norms, a SiLU gate: what Llama and its kin have in common."""
    heads = meta.own("attention.head_count")
    return {
        "num_key_value_heads": meta.own("attention.head_count_kv", heads),
        "head_dim": meta.own("attention.key_length", meta.own("embedding_length") // heads),
        "rms_norm_eps": meta.decimal("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
    }


_GEMMA2_27B_LAYERS = 46


def _gemma(meta: Metadata) -> dict[str, Any]:
    return _gated(meta) | {"hidden_act": "gelu_pytorch_tanh"}


def _gemma2(meta: Metadata) -> dict[str, Any]:
    """The query scale is not in the file: head size, but hidden size by heads in the 27B model (46 layers), as llama.cpp has it."""
    shape = _gated(meta)
    del shape["hidden_act"]
    per_head = meta.own("embedding_length") // meta.own("attention.head_count")
    return shape | {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": per_head if meta.own("block_count") == _GEMMA2_27B_LAYERS else shape["head_dim"],
        "attn_logit_softcapping": meta.decimal("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": meta.decimal("final_logit_softcapping", 30.0),
        "sliding_window": meta.own("attention.sliding_window"),
    }


def _neox(meta: Metadata) -> dict[str, Any]:
    return {
        "layer_norm_eps": meta.decimal("attention.layer_norm_epsilon"),
        "hidden_act": "gelu",
        "use_parallel_residual": meta.own("use_parallel_residual", True),
    }


FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        hf_class="LlamaForCausalLM",
        model_type="llama",
        inner=_named(_NORMS | _ATTENTION | _MLP, "weight"),
        switches={"attention_bias": _named(_ATTENTION, "bias"), "mlp_bias": _named(_MLP, "bias")},
        restore={
            "attn_q": lambda rows, config: unpermute(rows, config["num_attention_heads"]),
            "attn_k": lambda rows, config: unpermute(rows, config["num_key_value_heads"]),
        },
        settings=_gated,
    ),
    "qwen2": Family(
        hf_class="Qwen2ForCausalLM",
        model_type="qwen2",
        inner=_named(_NORMS | _ATTENTION | _MLP, "weight") | _named(_QKV, "bias"),
        settings=_gated,
    ),
    "qwen3": Family(
        hf_class="Qwen3ForCausalLM",
        model_type="qwen3",
        inner=_named(_NORMS | _ATTENTION | _QK_NORMS | _MLP, "weight"),
        switches={"attention_bias": _named(_ATTENTION, "bias")},
        settings=_gated,
    ),
    "gemma": Family(
        hf_class="GemmaForCausalLM",
        model_type="gemma",
        inner=_named(_NORMS | _ATTENTION | _MLP, "weight"),
        restore=dict.fromkeys([*_NORMS, "output_norm"], _minus_one),
        settings=_gemma,
    ),
    "gemma2": Family(
        hf_class="Gemma2ForCausalLM",
        model_type="gemma2",
        inner=_named(_GEMMA2_NORMS | _ATTENTION | _MLP, "weight"),
        restore=dict.fromkeys([*_GEMMA2_NORMS, "output_norm"], _minus_one),
        settings=_gemma2,
    ),
    "gptneox": Family(
        hf_class="GPTNeoXForCausalLM",
        model_type="gpt_neox",
        outer={"token_embd.weight": "gpt_neox.embed_in.weight"} | _named({"output_norm": "gpt_neox.final_layer_norm"}, "weight", "bias"),
        inner=_named(_NEOX, "weight", "bias"),
        head="embed_out.weight",
        layers="gpt_neox.layers",
        restore={"attn_qkv": _interleave},
        settings=_neox,
        partial_rotary=True,
    ),
}


def family_of(meta: Metadata) -> Family:
    """The family of a file.

    Raises:
        ModelError: an architecture that is not in FAMILIES.
    """
    if meta.architecture not in FAMILIES:
        raise meta.refuse(f"holds architecture {meta.architecture!r} (known: {', '.join(FAMILIES)})")
    return FAMILIES[meta.architecture]
