"""Small models of every family, with what makes them differ."""

from __future__ import annotations

from typing import Any

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MIXED = ["full_attention", "sliding_attention", "full_attention"]
NEAR_CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}


def heads(queries: int, kv: int, size: int) -> dict[str, int]:
    return {"num_attention_heads": queries, "num_key_value_heads": kv, "head_dim": size}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama no grouping": ("Llama", {"num_key_value_heads": 6}),
    "llama one kv head, odd head size": ("Llama", {"num_key_value_heads": 1, "head_dim": 22}),
    "llama, linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e3}}),
    "llama, llama3 rope": ("Llama", {"rope_parameters": LLAMA3, **heads(3, 1, 128)}),
    "smollm2": ("Llama", {"tie_word_embeddings": True, "hidden_size": 144, **heads(9, 3, 64)}),
    "mistral": ("Mistral", heads(7, 1, 80)),
    "mistral, window": ("Mistral", {"sliding_window": 40, **heads(6, 2, 96)}),
    "mistral, window of one": ("Mistral", {"sliding_window": 1}),
    "qwen2": ("Qwen2", heads(7, 1, 64)),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2, late layers slide": ("Qwen2", {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 1}),
    "qwen2, window switched off": ("Qwen2", {"use_sliding_window": False, "sliding_window": 4}),
    "qwen2, yarn": ("Qwen2", {"rope_parameters": YARN, **heads(3, 3, 80)}),
    "qwen3": ("Qwen3", heads(6, 2, 128)),
    "qwen3, listed layers slide": ("Qwen3", {"use_sliding_window": True, "sliding_window": 17, "layer_types": MIXED}),
    "qwen3, yarn with a factor of its own": ("Qwen3", {"rope_parameters": {**YARN, "attention_factor": 0.7, "beta_fast": 8.0}}),
    "qwen3, yarn with two scales": ("Qwen3", {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.3, "truncate": False}}),
    "gemma": ("Gemma", {"tie_word_embeddings": True, **heads(3, 1, 256)}),
    "gemma2": ("Gemma2", {"tie_word_embeddings": True, "sliding_window": 30, **heads(4, 2, 256)}),
    "gemma2 untied, near caps": (
        "Gemma2",
        {**NEAR_CAPS, "sliding_window": 15, "query_pre_attn_scalar": 24, "hidden_size": 112, **heads(7, 1, 96)},
    ),
    "gemma2, listed layers slide": ("Gemma2", {**NEAR_CAPS, "sliding_window": 64, "layer_types": MIXED}),
    "gemma2 without caps": ("Gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None, "sliding_window": 50}),
    "gpt-neox": ("GPTNeoX", {"hidden_size": 192, "num_attention_heads": 3}),
    "gpt-neox, one after the other": ("GPTNeoX", {"hidden_size": 160, "num_attention_heads": 2, "use_parallel_residual": False}),
    "gpt-neox tied, all rotated": ("GPTNeoX", {"tie_word_embeddings": True, "rotary_pct": 1.0, "rotary_emb_base": 5e3}),
    "gpt-neox without biases": ("GPTNeoX", {"attention_bias": False}),
}
