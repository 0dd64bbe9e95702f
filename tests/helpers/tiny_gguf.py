"""A GGUF file of a tiny Llama with grouped queries, written the way llama.cpp's converter writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quantize

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 64, 96, 2, 4, 2, 40
HEAD = HIDDEN // HEADS

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


def gguf_name(name: str) -> str:
    """llama.cpp's name of a transformers tensor."""
    outer = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
    if name in outer:
        return outer[name]
    inner = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "q_proj": "attn_q",
        "k_proj": "attn_k",
        "v_proj": "attn_v",
        "o_proj": "attn_output",
        "gate_proj": "ffn_gate",
        "up_proj": "ffn_up",
        "down_proj": "ffn_down",
    }
    parts = name.split(".")
    return f"blk.{parts[2]}.{inner[parts[-2]]}.weight"


def rotary_order(name: str, values: np.ndarray) -> np.ndarray:
    """Rows of q and k as llama.cpp wants them: row i of a head's first half next to row i of its second half."""
    heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else 0
    order = [head * HEAD + half * (HEAD // 2) + i for head in range(heads) for i in range(HEAD // 2) for half in (0, 1)]
    return values[order] if heads else values


def write_gguf(
    path: Path,
    weights: Weights,
    *,
    architecture: str = "llama",
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    pre: str = "smollm",
    model: str = "gpt2",
    add_bos: bool = False,
    extra: Weights | None = None,
    metadata: Mapping[str, int | str] | None = None,
) -> Path:
    """Write a GGUF file; the keywords change one thing about it."""
    writer = GGUFWriter(path, architecture)
    _write_shape(writer)
    _write_tokenizer(writer, model, pre, add_bos)
    for key, value in (metadata or {}).items():
        writer.add_key_value(key, value, GGUFValueType.STRING if isinstance(value, str) else GGUFValueType.UINT32)
    for name, values in weights.items():
        kept = GGMLQuantizationType.F32 if values.ndim == 1 else kind
        writer.add_tensor(gguf_name(name), quantize(rotary_order(name, values), kept), raw_dtype=kept)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_shape(writer: GGUFWriter) -> None:
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-6)


def _write_tokenizer(writer: GGUFWriter, model: str, pre: str, add_bos: bool) -> None:
    tokens = ["<|end|>", "<|start|>", "<tag>", *"0123456789", *"abcdefghijklmnopqrstuvw", "Ġ", "ab", "12", "bc"]
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 4, *([1] * (len(tokens) - 3))])
    writer.add_token_merges(["a b", "1 2", "b c"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(add_bos)
    writer.add_chat_template("{{ messages[0].content }}")
