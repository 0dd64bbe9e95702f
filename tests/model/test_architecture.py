"""config.json as an Architecture, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import transformers

from mqlab.errors import ModelError
from mqlab.model.architecture import read_architecture
from mqlab.model.families import FAMILIES, NEUTRAL
from mqlab.model.rope import Rope

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}


def test_fields_left_out_have_the_defaults_of_transformers() -> None:
    arch = read_architecture({**CONFIG, "num_key_value_heads": None})
    assert (arch.kv_heads, arch.head_dim, arch.tied) == (32, 64, False)
    assert arch.rope == Rope(theta=10000.0)
    assert (arch.activation, arch.norm_eps, arch.windows, arch.scale) == ("silu", 1e-5, (0,) * 16, 64**-0.5)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("fields", "rope"),
    [
        ({"rope_theta": 1e5}, Rope(theta=1e5)),
        ({"rope_theta": 1e5, "rope_scaling": {"type": "linear", "factor": 2}}, Rope(theta=1e5, kind="linear", factor=2.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, Rope(theta=7.0)),
        (
            {
                "rope_theta": 5e5,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 32.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            Rope(theta=5e5, kind="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_len=8192),
        ),
    ],
)
def test_rope_of_old_and_new_configs(fields: dict[str, Any], rope: Rope) -> None:
    assert read_architecture({**CONFIG, **fields}).rope == rope


def test_yarn_in_full() -> None:
    fields = {**YARN, "beta_fast": 16, "beta_slow": 2, "truncate": False, "attention_factor": 0.5}
    rope = Rope(theta=1e6, kind="yarn", factor=4.0, original_len=32768, beta_fast=16.0, beta_slow=2.0, truncate=False, attention_factor=0.5)
    assert read_architecture({**CONFIG, "rope_theta": 1e6, "rope_scaling": fields}).rope == rope


def test_yarn_with_its_defaults() -> None:
    rope = read_architecture({**CONFIG, "rope_parameters": {"rope_type": "yarn", "factor": 4.0}}).rope
    assert (rope.original_len, rope.beta_fast, rope.beta_slow, rope.truncate) == (131072, 32.0, 1.0, True)
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, 4096),
        ({"sliding_window": 512}, 4096),
        ({"rope_scaling": {**YARN, "original_max_position_embeddings": 4096}}, 16384),
        ({"rope_scaling": {**YARN, "original_max_position_embeddings": 512}}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 4096),
    ],
)
def test_context_is_what_the_weights_were_made_for(fields: dict[str, Any], limit: int) -> None:
    config = {**CONFIG, "architectures": ["MistralForCausalLM"], "max_position_embeddings": 4096}
    assert read_architecture({**config, **fields}).max_len == limit


LISTED = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("family", "fields", "windows"),
    [
        ("Llama", {"sliding_window": 8}, (0, 0, 0, 0)),
        ("Mistral", {"sliding_window": 8}, (8, 8, 8, 8)),
        ("Mistral", {"sliding_window": None}, (0, 0, 0, 0)),
        ("Mistral", {}, (4096,) * 4),
        ("Qwen2", {"sliding_window": 8, "use_sliding_window": False}, (0, 0, 0, 0)),
        ("Qwen2", {"sliding_window": 8, "use_sliding_window": True}, (0, 0, 0, 0)),
        ("Qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, (0, 0, 0, 8)),
        ("Qwen3", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3, "layer_types": LISTED}, (0, 8, 8, 0)),
        ("Qwen3", {"sliding_window": 8, "layer_types": ["full_attention"] * 4}, (0, 0, 0, 0)),
        ("Mistral", {"sliding_window": 8, "layer_types": ["sliding_attention"] * 4}, (8, 8, 8, 8)),
        ("Gemma2", {"sliding_window": 8}, (8, 0, 8, 0)),
        ("Gemma2", {"sliding_window": 8, "layer_types": LISTED}, (0, 8, 8, 0)),
        ("Gemma2", {"sliding_window": None}, (0, 0, 0, 0)),
    ],
)
def test_which_layers_have_a_window(family: str, fields: dict[str, Any], windows: tuple[int, ...]) -> None:
    config = {**CONFIG, "architectures": [f"{family}ForCausalLM"], "num_hidden_layers": 4}
    assert read_architecture({**config, **fields}).windows == windows


PYTHIA = {
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_act": "gelu",
    "hidden_size": 512,
    "intermediate_size": 2048,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "vocab_size": 50304,
}


@pytest.mark.parametrize(
    "fields",
    [
        {"rotary_emb_base": 5000, "rotary_pct": 0.5, "use_parallel_residual": True, "tie_word_embeddings": False},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}, "attention_bias": True},
    ],
    ids=["old", "new"],
)
def test_gpt_neox_of_old_and_new_configs(fields: dict[str, Any]) -> None:
    arch = read_architecture({**PYTHIA, **fields})
    assert (arch.rope, arch.rotary_dim, arch.kv_heads, arch.head_dim) == (Rope(theta=5000.0), 32, 8, 64)
    assert (arch.parallel, arch.tied, arch.qkv_bias, arch.out_bias, arch.mlp_bias) == (True, False, True, True, True)


def test_gpt_neox_with_its_defaults() -> None:
    arch = read_architecture(PYTHIA)
    assert (arch.rope, arch.rotary_dim, arch.parallel, arch.activation) == (Rope(theta=10000.0), 16, True, "gelu")


def test_gemma2_with_its_defaults() -> None:
    arch = read_architecture({**CONFIG, "architectures": ["Gemma2ForCausalLM"], "num_key_value_heads": 4})
    assert (arch.head_dim, arch.scale, arch.softcap, arch.final_softcap) == (256, 1 / 16, 50.0, 30.0)
    assert (arch.tied, arch.activation) == (True, "gelu_pytorch_tanh")


def test_old_gemma_says_gelu_and_means_its_tanh_approximation() -> None:
    assert read_architecture({**CONFIG, "architectures": ["GemmaForCausalLM"], "hidden_act": "gelu"}).activation == "gelu_pytorch_tanh"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_config_is_read_as_transformers_reads_it(family: str) -> None:
    """The numbers that a family's defaults decide, from a config that states the sizes only."""
    sizes = {name: value for name, value in CONFIG.items() if name not in ("num_key_value_heads", "rms_norm_eps")}
    theirs = getattr(transformers, family.replace("ForCausalLM", "Config"))(**sizes)
    bare, saved = (read_architecture({**config, "architectures": [family]}) for config in (sizes, theirs.to_dict()))
    assert bare == saved


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("Llama", {"sliding_window": 8}),
        ("Mistral", {"sliding_window": 8}),
        ("Qwen3", {"sliding_window": 8, "use_sliding_window": False}),
        ("Gemma2", {"sliding_window": None}),
    ],
)
def test_listed_layer_types_that_the_class_would_not_heed_are_refused(family: str, fields: dict[str, Any]) -> None:
    config = {**CONFIG, "architectures": [f"{family}ForCausalLM"], "num_hidden_layers": 4, "layer_types": LISTED}
    with pytest.raises(ModelError, match=r"layer_types=.*make windows of \(\d, \d, \d, \d\) tokens"):
        read_architecture({**config, **fields})


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("Mistral", {"attention_bias": True}),
        ("Qwen2", {"mlp_bias": True}),
        ("Gemma", {"final_logit_softcapping": 30.0}),
        ("Gemma2", {"mlp_bias": True}),
        ("Llama", {"attn_logit_softcapping": 50.0}),
        ("Llama", {"query_pre_attn_scalar": 256}),
        ("Llama", {"logits_scaling": 8.0}),
        ("Llama", {"embedding_multiplier": 12.0}),
        ("Llama", {"use_qk_norm": True}),
        ("Llama", {"partial_rotary_factor": 0.5}),
        ("Qwen3", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
        ("GPTNeoX", {"logit_scale": 0.5}),
    ],
    ids=str,
)
def test_a_field_that_the_class_passes_over_is_refused(family: str, fields: dict[str, Any]) -> None:
    config = {**CONFIG, "architectures": [f"{family}ForCausalLM"], "layer_norm_eps": 1e-5}
    with pytest.raises(ModelError, match=rf"which {family}ForCausalLM passes over"):
        read_architecture({**config, **fields})


@pytest.mark.parametrize("family", FAMILIES)
def test_fields_of_other_classes_at_which_nothing_changes_are_passed_over(family: str) -> None:
    config = {**CONFIG, "architectures": [family]}
    neutral = {name: value for name, value in NEUTRAL.items() if not FAMILIES[family].heeds(name)}
    assert read_architecture({**config, **neutral}) == read_architecture(config)


def test_biases_that_a_class_always_has_may_be_stated() -> None:
    config = {**CONFIG, "architectures": ["Qwen2ForCausalLM"]}
    assert read_architecture({**config, "attention_bias": True}) == read_architecture(config)


def test_two_rope_settings_must_agree() -> None:
    scaled = {"rope_type": "linear", "factor": 2.0}
    assert read_architecture({**CONFIG, "rope_parameters": scaled, "rope_scaling": scaled}).rope.factor == 2.0
    with pytest.raises(ModelError, match=r"rope_parameters=.* and rope_scaling=.*, which differ"):
        read_architecture({**CONFIG, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_scaling": scaled})


def test_unknown_architecture_is_named_with_what_is_supported() -> None:
    with pytest.raises(ModelError, match=r"'MambaForCausalLM'\] is not supported") as caught:
        read_architecture({**CONFIG, "architectures": ["MambaForCausalLM"]})
    assert all(name in str(caught.value) for name in FAMILIES)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": None}, "architectures=None"),
        ({"hidden_size": None}, "hidden_size=None"),
        ({"num_hidden_layers": "16"}, "num_hidden_layers='16'"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps='small'"),
        ({"num_key_value_heads": 5}, "32 query and 5 KV heads"),
        ({"hidden_act": ["silu"]}, "is not supported"),
        ({"hidden_act": "xielu"}, "hidden_act='xielu' is not supported.*silu, "),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types=.* for each of 16 layers"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope type 'dynamic'.*default, linear, llama3, yarn"),
        ({"layer_types": ["chunked_attention"] * 16}, "layer_types=.*full_attention, sliding_attention"),
        ({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "max_window_layers": "3"}, "max_window_layers='3'"),
        ({"rope_theta": -1.0}, r"theta=-1\.0 must be above 1"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, r"factor=0\.0"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "yarn rope settings.*factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "must be one set of fields"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_parameters": "fast"}, "'fast'"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_architecture({**CONFIG, **fields})
