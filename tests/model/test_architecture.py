"""config.json as an Architecture, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from mqlab.errors import ModelError
from mqlab.model.architecture import FAMILIES, read_architecture
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


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, 4096),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, 131072),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096, "use_sliding_window": False}, 131072),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096, "use_sliding_window": True}, 4096),
    ],
)
def test_context_ends_where_attention_would_stop_being_full(fields: dict[str, Any], limit: int) -> None:
    assert read_architecture({**CONFIG, **fields}).max_len == limit


def test_unknown_architecture_is_named_with_what_is_supported() -> None:
    with pytest.raises(ModelError, match="'MambaForCausalLM' is not supported") as caught:
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
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_parameters": "fast"}, "'fast'"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_architecture({**CONFIG, **fields})
