"""A GGUF file of a tiny Llama with grouped queries, written the way llama.cpp's converter writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from hf_gguf import Raw, Vocabulary, write_hf_gguf

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 64, 96, 2, 4, 2, 40
HEAD = HIDDEN // HEADS

CONFIG: dict[str, Any] = {
    "max_position_embeddings": 128,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "rope_parameters": {"rope_theta": 5000.0},
}

Weights = dict[str, np.ndarray]


def tiny_weights(tied: bool = True) -> Weights:
    """Random float32 weights under transformers' names; linear layers are [out, in]."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{norm}.weight": (HIDDEN,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qo"}
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (KV_HEADS * HEAD, HIDDEN) for name in "kv"}
        shapes |= {f"{prefix}mlp.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")}
        shapes[f"{prefix}mlp.down_proj.weight"] = (HIDDEN, INNER)
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    weights: Weights,
    *,
    architecture: str = "llama",
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    pre: str = "smollm",
    model: str = "gpt2",
    options: Mapping[str, Any] | None = None,
    raw: Raw | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a GGUF file; the keywords change one thing about it (``options``: of the tokenizer, see Vocabulary)."""
    tokens = ["<|end|>", "<|start|>", "<tag>", *"0123456789", *"abcdefghijklmnopqrstuvw", "Ġ", "ab", "12", "bc"]
    vocabulary = Vocabulary(
        tokens=tokens,
        kinds=[3, 3, 4, *([1] * (len(tokens) - 3))],
        model=model,
        pre=pre,
        merges=["a b", "1 2", "b c"],
        options={"bos_token_id": 1, "eos_token_id": 0, "chat_template": "{{ messages[0].content }}", **(options or {})},
    )
    return write_hf_gguf(path, architecture, CONFIG, weights, kind=kind, vocabulary=vocabulary, raw=raw, metadata=metadata)
