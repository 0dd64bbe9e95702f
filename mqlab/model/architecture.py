"""config.json of a model that the decoder runs, as numbers, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mqlab.errors import ModelError
from mqlab.model.families import ACTIVATIONS, FAMILIES, LAYER_TYPES, NEUTRAL, Family, family_of
from mqlab.model.fields import count, number
from mqlab.model.rope import KINDS, Rope, context_length, read_rope, rope_fields


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder's shape.

    Attributes:
        name: the class in config.json.
        family: what that class fixes.
        max_len: positions that the weights were made for.
        activation: of the MLP, a key of ACTIVATIONS.
        rotary_dim: how many dimensions of a head are rotated.
        tied: whether the output projection is the embedding.
        parallel: whether attention and MLP both read the layer's input.
        windows: how many tokens a query of each layer sees, itself included; 0 for all.
        scale: of attention scores.
        softcap: of attention scores; 0 for none. final_softcap: of logits.
    """

    name: str
    family: Family
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_len: int
    norm_eps: float
    activation: str
    rope: Rope
    rotary_dim: int
    tied: bool
    parallel: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    windows: tuple[int, ...]
    scale: float
    softcap: float
    final_softcap: float

    @property
    def kv_shapes(self) -> tuple[tuple[int, int], ...]:
        """KV heads and head size of each layer."""
        return ((self.kv_heads, self.head_dim),) * self.layers


def what_is_missing(config: dict[str, Any]) -> str:
    """Why the decoder cannot run a model: the feature that it lacks, and what it has. Empty where it lacks nothing."""
    name = family_of(config)
    if name is None:
        return f"architectures={config.get('architectures')!r} is not supported; pass a model with one of {', '.join(FAMILIES)}"
    config, family = _filled(config, FAMILIES[name]), FAMILIES[name]
    if config.get("quantization_config"):
        return "quantization_config: quantised weights are not supported; pass the float32, bfloat16 or float16 model"
    if config.get("use_bidirectional_attention"):
        return "use_bidirectional_attention is not supported; pass a model whose attention is causal"
    if (activation := _activation(config, family)) not in ACTIVATIONS:
        return f"{family.activation}={activation!r} is not supported; pass a model that uses one of {', '.join(ACTIVATIONS)}"
    kind, _ = rope_fields(config)
    return "" if kind in KINDS else f"rope type {kind!r} is not supported; pass a model whose rope is one of {', '.join(KINDS)}"


def read_architecture(config: dict[str, Any]) -> Architecture:
    """Check and convert config.json, in the form of transformers 5 or before.

    Raises:
        ModelError: an architecture or a feature that the decoder lacks, a field that is missing or of the wrong kind, or one that
            the class of the model passes over although it asks for something else to be computed.
    """
    name, missing = family_of(config), what_is_missing(config)
    if name is None or missing:
        raise ModelError(missing)
    family = FAMILIES[name]
    config = _filled(config, family)
    _check_heeded(config, name, family)
    heads, kv_heads, head_dim, rotary_dim = _heads(config, family)
    layers = count(config, "num_hidden_layers")
    return Architecture(
        name=name,
        family=family,
        hidden=count(config, "hidden_size"),
        intermediate=count(config, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=count(config, "vocab_size"),
        max_len=context_length(config),
        norm_eps=number(config, family.norm_eps),
        activation=_activation(config, family),
        rope=read_rope(config),
        rotary_dim=rotary_dim,
        tied=bool(config["tie_word_embeddings"]),
        parallel=_switch(config, family.parallel),
        qkv_bias=_switch(config, family.qkv_bias),
        out_bias=_switch(config, family.out_bias),
        mlp_bias=_switch(config, family.mlp_bias),
        windows=_windows(config, family, layers),
        scale=(number(config, "query_pre_attn_scalar") if family.capped else head_dim) ** -0.5,
        softcap=_cap(config, family, "attn_logit_softcapping"),
        final_softcap=_cap(config, family, "final_logit_softcapping"),
    )


def _filled(config: dict[str, Any], family: Family) -> dict[str, Any]:
    """With today's field names, and the family's defaults for what is left out."""
    return {**family.defaults, **{family.renamed.get(field, field): value for field, value in config.items()}}


def _check_heeded(config: dict[str, Any], name: str, family: Family) -> None:
    """Refuse what would change the answers if the class knew it: the weights were not made for this class."""
    for field, value in ({**config, **rope_fields(config)[1]}).items():
        if field in NEUTRAL and value not in (None, NEUTRAL[field]) and not family.heeds(field):
            raise ModelError(
                f"config.json has {field}={value!r}, which {name} passes over; pass a model of a class that has it, or remove the field"
            )


def _activation(config: dict[str, Any], family: Family) -> str:
    activation = str(config.get(family.activation) or family.defaults[family.activation])
    return family.activations.get(activation, activation)


def _heads(config: dict[str, Any], family: Family) -> tuple[int, int, int, int]:
    """Query heads, KV heads, their size, and how many dimensions are rotated."""
    heads = count(config, "num_attention_heads")
    kv_heads = heads if len(family.names.qkv) == 1 else count(config, "num_key_value_heads", heads)
    head_dim = count(config, "head_dim", count(config, "hidden_size") // heads)
    rotary_dim = int(head_dim * _rotary_share(config)) if family.partial_rotary else head_dim
    if heads % kv_heads or rotary_dim % 2 or rotary_dim > head_dim:
        raise ModelError(
            f"config.json has {heads} query and {kv_heads} KV heads of size {head_dim}, {rotary_dim} of it rotated: "
            "the ratio must be whole, the rotated part even and no larger than the head"
        )
    return heads, kv_heads, head_dim, rotary_dim


def _rotary_share(config: dict[str, Any]) -> float:
    _, fields = rope_fields(config)
    return number({**config, **fields}, "partial_rotary_factor")


def _windows(config: dict[str, Any], family: Family, layers: int) -> tuple[int, ...]:
    listed = config.get("layer_types")
    _check_layer_types(listed, layers)
    window = 0 if config.get("sliding_window") is None else count(config, "sliding_window")
    windows = tuple(window if family.slides(config, layer) else 0 for layer in range(layers))
    if listed is not None and listed != [LAYER_TYPES[width > 0] for width in windows]:
        raise ModelError(
            f"config.json has layer_types={listed!r}, but its sliding_window and the rules of its class make windows of "
            f"{windows} tokens, 0 for none; make them agree, or remove layer_types"
        )
    return windows


def _check_layer_types(listed: Any, layers: int) -> None:
    if listed is None:
        return
    if not isinstance(listed, list) or len(listed) != layers or not all(kind in LAYER_TYPES for kind in listed):
        raise ModelError(
            f"config.json has layer_types={listed!r}, which must name one of {', '.join(LAYER_TYPES)} for each of {layers} layers; "
            "pass a model with such layers only"
        )


def _cap(config: dict[str, Any], family: Family, field: str) -> float:
    return number(config, field) if family.capped and config.get(field) is not None else 0.0


def _switch(config: dict[str, Any], rule: bool | str) -> bool:
    return bool(config.get(rule, False)) if isinstance(rule, str) else rule
