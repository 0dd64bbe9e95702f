"""A model that takes microseconds a token and speaks the default model's vocabulary: for tests in which no text needs to make sense."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, INNER = 2, 48, 3, 1, 16, 96
END = 2


def write_small_model(folder: Path, model_folder: Path, vocab_size: int = 49152, context: int = 512, kv_heads: int = KV_HEADS) -> Path:
    """A Llama of random weights with the tokenizer of the default model, in ``folder``.

    Its greedy texts soon repeat themselves, as guesses from the text so far like it; nearly no draw is a close one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_folder / name, folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": kv_heads,
        "head_dim": HEAD,
        "vocab_size": vocab_size,
        "max_position_embeddings": context,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "eos_token_id": END,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(vocab_size, kv_heads), folder / "model.safetensors")
    return folder


def _weights(vocab_size: int, kv_heads: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(0, 2.5 / np.sqrt(shape[-1]), shape).astype(np.float32)

    weights = {"model.embed_tokens.weight": normal(vocab_size, HIDDEN), "lm_head.weight": normal(vocab_size, HIDDEN)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        weights |= {f"{name}.self_attn.q_proj.weight": normal(HEADS * HEAD, HIDDEN)}
        weights |= {f"{name}.self_attn.{kind}_proj.weight": normal(kv_heads * HEAD, HIDDEN) for kind in "kv"}
        weights |= {f"{name}.self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD)}
        weights |= {f"{name}.mlp.{kind}_proj.weight": normal(INNER, HIDDEN) for kind in ("gate", "up")}
        weights |= {f"{name}.mlp.down_proj.weight": normal(HIDDEN, INNER)}
        weights |= {f"{name}.{kind}_layernorm.weight": np.ones(HIDDEN, np.float32) for kind in ("input", "post_attention")}
    return {**weights, "model.norm.weight": np.ones(HIDDEN, np.float32)}
