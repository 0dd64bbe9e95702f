"""What each model class fixes in its code and leaves out of config.json, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mqlab.model.fields import count

Config = Mapping[str, Any]

LAYER_TYPES = ("full_attention", "sliding_attention")

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "tanh_gelu",
    "gelu_new": "tanh_gelu",
    "gelu_fast": "tanh_gelu",
    "relu": "relu",
}
"""By the names of config.json, a function of ``layers``; transformers has three names for gelu's tanh approximation."""

NEUTRAL: dict[str, Any] = {
    "attention_bias": False,
    "mlp_bias": False,
    "partial_rotary_factor": 1,
    "use_qk_norm": False,
    "clip_qkv": None,
    "attention_multiplier": None,
    "query_pre_attn_scalar": None,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "logit_scale": 1,
    "logits_scaling": 1,
    "embedding_multiplier": 1,
    "residual_multiplier": 1,
}
"""Fields that change what some class computes, with the values at which they do not."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Tensor names without ``.weight`` and ``.bias``; those of a layer follow ``layer``, in which {} is its number.

    Attributes:
        qkv: three projections, or one that holds all three, head by head: the query, key and value rows of a head together.
        up: gate and up, or up alone.
        head: under which names the output projection is found; the first is the usual one.
        after_attention, after_mlp: a norm of what is added to the residual stream; empty for none.
    """

    embedding: str = "model.embed_tokens"
    layer: str = "model.layers.{}."
    attention_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    out: str = "self_attn.o_proj"
    after_attention: str = ""
    mlp_norm: str = "post_attention_layernorm"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    after_mlp: str = ""
    norm: str = "model.norm"
    head: tuple[str, ...] = ("lm_head",)


def _never(config: Config, layer: int) -> bool:
    return False


def _always(config: Config, layer: int) -> bool:
    return True


def _as_listed(config: Config, layer: int) -> bool | None:
    """What layer_types says, if there is one."""
    kinds = config.get("layer_types")
    return None if kinds is None else kinds[layer] == LAYER_TYPES[1]


def _when_switched_on(config: Config, layer: int) -> bool:
    """Qwen: with a switch, and where no list says otherwise from max_window_layers on."""
    listed = _as_listed(config, layer)
    return bool(config["use_sliding_window"]) and (layer >= count(config, "max_window_layers", least=0) if listed is None else listed)


def _every_other(config: Config, layer: int) -> bool:
    """Gemma 2: where no list says otherwise, the first layer and every second after it."""
    listed = _as_listed(config, layer)
    return layer % 2 == 0 if listed is None else listed


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model class; where a str stands for a bool it names the field of config.json that decides.

    Attributes:
        norm: RMS norm, RMS norm times 1 + weight, or layer norm with a bias.
        norm_eps: the config field.
        activation: the config field.
        activations: activations that mean another than they say.
        parallel: attention and MLP both read the layer's input, and are added together.
        qk_norm: each query and key head is normalised.
        scaled_embedding: token embeddings are multiplied by the root of the hidden size.
        capped: soft caps on scores and logits, and a scale of its own for queries.
        partial_rotary: only a part of each head is rotated.
        slides: whether a layer has the config's sliding window.
        defaults: what transformers' config class has where config.json leaves the field out.
        renamed: old field names and today's.
    """

    names: Names = field(default_factory=Names)
    norm: Literal["rms", "rms_plus_one", "layer"] = "rms"
    norm_eps: str = "rms_norm_eps"
    activation: str = "hidden_act"
    activations: Mapping[str, str] = field(default_factory=dict)
    parallel: bool | str = False
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool = False
    scaled_embedding: bool = False
    capped: bool = False
    partial_rotary: bool = False
    slides: Callable[[Config, int], bool] = _never
    defaults: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    def heeds(self, name: str) -> bool:
        """Whether its code looks at a field of NEUTRAL, or has what the field would switch on."""
        biases = {"attention_bias": self.qkv_bias, "mlp_bias": self.mlp_bias}
        return name in self.defaults or bool(biases.get(name))


_COMMON = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
_QWEN = {**_COMMON, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA = {**_COMMON, "hidden_act": "gelu_pytorch_tanh", "head_dim": 256, "tie_word_embeddings": True}

_GEMMA2_NAMES = Names(
    after_attention="post_attention_layernorm", mlp_norm="pre_feedforward_layernorm", after_mlp="post_feedforward_layernorm"
)
_NEOX_NAMES = Names(
    embedding="gpt_neox.embed_in",
    layer="gpt_neox.layers.{}.",
    qkv=("attention.query_key_value",),
    out="attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    norm="gpt_neox.final_layer_norm",
    head=("embed_out", "lm_head"),
)

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", defaults=_COMMON),
    "MistralForCausalLM": Family(slides=_always, defaults={**_COMMON, "num_key_value_heads": 8, "sliding_window": 4096}),
    "Qwen2ForCausalLM": Family(qkv_bias=True, slides=_when_switched_on, defaults={**_QWEN, "num_key_value_heads": 32}),
    "Qwen3ForCausalLM": Family(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        slides=_when_switched_on,
        defaults={**_QWEN, "num_key_value_heads": 32, "head_dim": 128},
    ),
    "GemmaForCausalLM": Family(
        norm="rms_plus_one",
        activations={"gelu": "gelu_pytorch_tanh"},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        scaled_embedding=True,
        defaults={**_GEMMA, "num_key_value_heads": 16},
    ),
    "Gemma2ForCausalLM": Family(
        names=_GEMMA2_NAMES,
        norm="rms_plus_one",
        activation="hidden_activation",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        scaled_embedding=True,
        capped=True,
        slides=_every_other,
        defaults={
            **_GEMMA,
            "hidden_activation": "gelu_pytorch_tanh",
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "query_pre_attn_scalar": 256,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "GPTNeoXForCausalLM": Family(
        names=_NEOX_NAMES,
        norm="layer",
        norm_eps="layer_norm_eps",
        parallel="use_parallel_residual",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias=True,
        partial_rotary=True,
        defaults={
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "use_parallel_residual": True,
            "attention_bias": True,
            "partial_rotary_factor": 0.25,
        },
        renamed={"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"},
    ),
}


def family_of(config: Config) -> str | None:
    """The first architecture of config.json that the decoder knows."""
    names = config.get("architectures")
    return next((name for name in names if isinstance(name, str) and name in FAMILIES), None) if isinstance(names, list) else None
