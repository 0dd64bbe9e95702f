"""GGUF to a Hugging Face folder: same weights, same tokenizer, same settings, or a clear refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file
from tiny_gguf import HEAD, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, VOCAB, tiny_weights, write_gguf

from mqlab.errors import ModelError
from mqlab.models.gguf import convert
from mqlab.text.tokenizer import Tokenizer


def converted(tmp_path: Path, *, tied: bool = True, **changes: Any) -> Path:
    """The folder that a tiny GGUF file becomes."""
    source = write_gguf(tmp_path / "tiny.gguf", tiny_weights(tied), **changes)
    folder = tmp_path / "folder"
    folder.mkdir()
    convert(source, folder, progress=False)
    return folder


@pytest.mark.parametrize("tied", [True, False])
def test_float32_weights_come_back_exactly(tmp_path: Path, tied: bool) -> None:
    folder = converted(tmp_path, tied=tied)
    got, expected = load_file(folder / "model.safetensors"), tiny_weights(tied)
    assert set(got) == set(expected)
    for name, values in expected.items():
        assert got[name].dtype == np.float32
        np.testing.assert_array_equal(got[name], values, err_msg=name)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is tied


@pytest.mark.parametrize(
    ("kind", "error"), [(GGMLQuantizationType.F16, 1e-3), (GGMLQuantizationType.Q8_0, 1e-2), (GGMLQuantizationType.Q4_1, 0.15)]
)
def test_quantised_weights_come_back_close(tmp_path: Path, kind: GGMLQuantizationType, error: float) -> None:
    got = load_file(converted(tmp_path, kind=kind) / "model.safetensors")
    for name, values in tiny_weights().items():
        assert np.linalg.norm(got[name] - values) <= error * np.linalg.norm(values), name


def test_config(tmp_path: Path) -> None:
    folder = converted(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    shape = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
    )
    assert [config[key] for key in shape] == [HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD, VOCAB]
    assert (config["rope_theta"], config["rms_norm_eps"], config["max_position_embeddings"]) == (5000.0, 1e-6, 128)
    assert (config["model_type"], config["architectures"]) == ("llama", ["LlamaForCausalLM"])
    ids = {"bos_token_id": 1, "eos_token_id": 0, "pad_token_id": None}
    assert json.loads((folder / "generation_config.json").read_text()) == ids
    assert ids.items() <= config.items()


def test_end_of_turn_is_an_end_token_too(tmp_path: Path) -> None:
    folder = converted(tmp_path, metadata={"tokenizer.ggml.eot_token_id": 2})
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [0, 2]


@pytest.mark.parametrize("pre", ["smollm", "gpt-2"])
def test_digits_stand_alone_where_the_pre_tokenizer_says_so(tmp_path: Path, pre: str) -> None:
    tokenizer = Tokenizer.load(converted(tmp_path, pre=pre))
    tokens = ["<|end|>", "<|start|>", "<tag>", *"0123456789", *"abcdefghijklmnopqrstuvw", "Ġ", "ab", "12", "bc"]
    expected = ["1", "2", "ab", "c"] if pre == "smollm" else ["12", "ab", "c"]
    assert tokenizer.encode("12abc") == [tokens.index(token) for token in expected]


def test_control_and_user_defined_tokens_stay_whole(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(converted(tmp_path))
    assert tokenizer.encode("<|start|><tag><|end|>") == [1, 2, 0]
    assert tokenizer.decode([1, 2, 0]) == "<tag>"  # control tokens are hidden, the user's are text
    assert tokenizer.decode([1, 2, 0], skip_special_tokens=False) == "<|start|><tag><|end|>"
    roles = {role: tokenizer.special_tokens[role] for role in ("bos_token", "eos_token")}
    assert roles == {"bos_token": "<|start|>", "eos_token": "<|end|>"}
    assert tokenizer.vocab_size == VOCAB


@pytest.mark.parametrize("add_bos", [True, False])
def test_the_start_token_is_added_where_the_file_says_so(tmp_path: Path, add_bos: bool) -> None:
    tokenizer = Tokenizer.load(converted(tmp_path, add_bos=add_bos))
    assert tokenizer.encode("b") == [1] * add_bos + tokenizer.encode("b", add_special_tokens=False)


def test_rotary_factors_of_one_are_ignored_and_others_refused(tmp_path: Path) -> None:
    ones = np.ones(HEAD // 2, np.float32)
    assert "rope" not in str(list(load_file(converted(tmp_path, extra={"rope_freqs.weight": ones}) / "model.safetensors")))
    with pytest.raises(ModelError, match=r"'rope_freqs\.weight' that a plain Llama does not have"):
        refused(tmp_path, extra={"rope_freqs.weight": 2 * ones})


def refused(tmp_path: Path, **changes: Any) -> None:
    source = write_gguf(tmp_path / "other.gguf", tiny_weights(), **changes)
    folder = tmp_path / "other"
    folder.mkdir()
    convert(source, folder, progress=False)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architecture": "qwen2"}, "architecture 'qwen2'; only 'llama'"),
        ({"model": "llama"}, "a 'llama' tokenizer; only 'gpt2'"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken', which is not one of gpt-2, smollm"),
        ({"metadata": {"llama.expert_count": 8}}, "mixture of 8 experts"),
        ({"metadata": {"llama.rope.scaling.type": "yarn"}}, "scales its rotary positions"),
        ({"extra": {"blk.0.attn_q.bias": np.ones(HIDDEN, np.float32)}}, r"'blk\.0\.attn_q\.bias' that a plain Llama does not have"),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint) as caught:
        refused(tmp_path, **changes)
    assert "other.gguf" in str(caught.value)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    weights = tiny_weights()
    del weights["model.layers.1.mlp.up_proj.weight"]
    source = write_gguf(tmp_path / "tiny.gguf", weights)
    with pytest.raises(ModelError, match=r"lacks 1 tensors, 'model\.layers\.1\.mlp\.up_proj\.weight' first"):
        convert(source, tmp_path, progress=False)


@pytest.mark.parametrize("keep", [0, 3, 200, 5000])
def test_a_damaged_file_is_named(tmp_path: Path, keep: int) -> None:
    whole = write_gguf(tmp_path / "tiny.gguf", tiny_weights()).read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:keep])
    with pytest.raises(ModelError, match=r"cut\.gguf cannot be read as a GGUF file"):
        convert(cut, tmp_path, progress=False)


def test_the_default_model_completes_sensibly(model_folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, info = AutoModelForCausalLM.from_pretrained(model_folder, output_loading_info=True)
    assert not any(info.values())
    assert model.dtype == torch.float32
    prompt = AutoTokenizer.from_pretrained(model_folder)("The capital of France is", return_tensors="pt")
    tokens = model.generate(**prompt, max_new_tokens=1, do_sample=False)[0]
    assert Tokenizer.load(model_folder).decode(tokens.tolist()) == "The capital of France is Paris"
