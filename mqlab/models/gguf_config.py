"""GGUF metadata to config.json and generation_config.json."""

from __future__ import annotations

from typing import Any

from gguf import TokenType

from mqlab.errors import ModelError
from mqlab.models.gguf_families import Family, family_of
from mqlab.models.gguf_metadata import Metadata
from mqlab.models.gguf_rope import rope_parameters

_NEUTRAL = {
    "expert_count": 0,
    "attention.causal": True,
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "logit_scale": 0.0,
    "embedding_scale": 0.0,
    "residual_scale": 0.0,
}
"""Settings that change what a model computes and that no family here has, with the values at which they do not."""

_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<|end|>", "<end_of_turn>")
"""Control tokens that end a turn or a text; files rarely name more than one of a model's (llama.cpp finds them by text, too)."""


def hf_config(meta: Metadata) -> dict[str, Any]:
    """The fields of transformers' config class (5.24) that a GGUF file states or implies.

    Raises:
        ModelError: an architecture or a setting that is not known here, or a missing one.
    """
    family = family_of(meta)
    _require_plain(meta)
    heads, hidden = meta.own("attention.head_count"), meta.own("embedding_length")
    settings = family.settings(meta)
    return {
        "architectures": [family.hf_class],
        "model_type": family.model_type,
        "hidden_size": hidden,
        "intermediate_size": meta.own("feed_forward_length"),
        "num_hidden_layers": meta.own("block_count"),
        "num_attention_heads": heads,
        **settings,
        **{switch: _is_on(meta, family, switch) for switch in family.switches},
        "vocab_size": int(meta.tensors["token_embd.weight"].shape[-1]),
        "max_position_embeddings": meta.own("context_length"),
        "rope_parameters": rope_parameters(meta, settings.get("head_dim", hidden // heads), partial=family.partial_rotary),
        "tie_word_embeddings": "output.weight" not in meta.tensors,
        "bos_token_id": meta.token_id("bos"),
        "eos_token_id": _end_ids(meta),
        "pad_token_id": meta.token_id("padding"),
        "dtype": "float32",
    }


def generation_config(config: dict[str, Any]) -> dict[str, Any]:
    """What transformers' GenerationConfig needs: the ids at which text begins and ends."""
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _require_plain(meta: Metadata) -> None:
    for name, neutral in _NEUTRAL.items():
        if (value := meta.own(name, neutral)) != neutral:
            raise meta.refuse(f"has {meta.architecture}.{name} = {value!r}")
    for name in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        if isinstance(meta.own(name, 0), list):
            raise meta.refuse(f"has layers that differ ({meta.architecture}.{name} is a list)")
    if meta.own("attention.value_length", None) not in (None, meta.own("attention.key_length", None)):
        raise meta.refuse("has values of another size than keys")
    if "token_embd.weight" not in meta.tensors:
        raise ModelError(f"{meta.source} has no tensor 'token_embd.weight'; check that the download is complete")


def _is_on(meta: Metadata, family: Family, switch: str) -> bool:
    return any(f"blk.0.{name}" in meta.tensors for name in family.switches[switch])


def _end_ids(meta: Metadata) -> int | list[int] | None:
    named = [meta.token_id(role) for role in ("eos", "eot", "eom")]
    controls = {text: token for token, (text, kind) in enumerate(zip(meta.tokens, meta.kinds, strict=False)) if kind == TokenType.CONTROL}
    found = [controls[text] for text in _ENDS if text in controls]
    unique = list(dict.fromkeys(token for token in named + found if token is not None))
    return unique if len(unique) > 1 else next(iter(unique), None)
