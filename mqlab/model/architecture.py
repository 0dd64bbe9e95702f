"""config.json of a Llama-shaped model as numbers, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mqlab.errors import ModelError
from mqlab.model.rope import Rope, read_rope


@dataclass(frozen=True)
class _Family:
    """What a model class fixes in its code and leaves out of config.json; a str names the config field that decides."""

    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool = False
    windowed: bool | str = False


FAMILIES = {
    "LlamaForCausalLM": _Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
    "MistralForCausalLM": _Family(windowed=True),
    "Qwen2ForCausalLM": _Family(qkv_bias=True, windowed="use_sliding_window"),
    "Qwen3ForCausalLM": _Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True, windowed="use_sliding_window"),
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder's shape.

    Attributes:
        name: the class in config.json.
        max_len: positions that the weights were made for; a sliding window ends it, since within the window attention is full.
        tied: whether the output projection is the embedding.
    """

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_len: int
    norm_eps: float
    rope: Rope
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool


def read_architecture(config: dict[str, Any]) -> Architecture:
    """Check and convert config.json.

    Raises:
        ModelError: an architecture or a feature that the decoder lacks, or a field that is missing or of the wrong kind.
    """
    name, family = _family(config)
    _refuse_unsupported(config)
    heads, hidden = _count(config, "num_attention_heads"), _count(config, "hidden_size")
    kv_heads = _count(config, "num_key_value_heads", heads)
    head_dim = _count(config, "head_dim", hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelError(
            f"config.json has {heads} query and {kv_heads} KV heads of size {head_dim}: the ratio must be whole, the size even"
        )
    return Architecture(
        name=name,
        hidden=hidden,
        intermediate=_count(config, "intermediate_size"),
        layers=_count(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=_count(config, "vocab_size"),
        max_len=_max_len(config, family),
        norm_eps=_number(config, "rms_norm_eps", 1e-6),
        rope=read_rope(config),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=_switch(config, family.qkv_bias),
        out_bias=_switch(config, family.out_bias),
        mlp_bias=_switch(config, family.mlp_bias),
        qk_norm=family.qk_norm,
    )


def _family(config: dict[str, Any]) -> tuple[str, _Family]:
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise ModelError(f"config.json names no architecture (architectures={names!r}); set it to one of {', '.join(FAMILIES)}")
    for name in names:
        if name in FAMILIES:
            return name, FAMILIES[name]
    raise ModelError(f"architecture {names[0]!r} is not supported; pass a model whose architecture is one of {', '.join(FAMILIES)}")


def _refuse_unsupported(config: dict[str, Any]) -> None:
    if "quantization_config" in config:
        raise ModelError("quantization_config: quantised weights are not supported; pass the float32, bfloat16 or float16 model")
    act = config.get("hidden_act", "silu")
    if act != "silu":
        raise ModelError(f"hidden_act={act!r} is not supported; the decoder computes silu only, pass a model that uses it")


def _max_len(config: dict[str, Any], family: _Family) -> int:
    limit = _count(config, "max_position_embeddings")
    if _switch(config, family.windowed) and config.get("sliding_window") is not None:
        return min(limit, _count(config, "sliding_window"))
    return limit


def _switch(config: dict[str, Any], rule: bool | str) -> bool:
    return bool(config.get(rule, False)) if isinstance(rule, str) else rule


def _count(config: dict[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"config.json has {field}={value!r}, which must be a whole number above 0; download or save the model again")
    return value


def _number(config: dict[str, Any], field: str, default: float) -> float:
    value = config.get(field, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ModelError(f"config.json has {field}={value!r}, which must be a number above 0; download or save the model again")
    return float(value)
