"""GGUF to a Hugging Face folder: same weights, same tokenizer, same settings, or a clear refusal."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFEndian, GGUFWriter
from hf_gguf import plain_vocabulary, write_hf_gguf
from safetensors.numpy import load_file
from tiny_gguf import CONFIG, HEAD, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, VOCAB, tiny_weights, write_gguf

from mqlab.errors import ModelError
from mqlab.models.gguf import convert
from mqlab.text.chat import ChatTemplate
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
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 5000.0}
    assert (config["rms_norm_eps"], config["max_position_embeddings"]) == (1e-6, 128)
    assert (config["model_type"], config["architectures"]) == ("llama", ["LlamaForCausalLM"])
    ids = {"bos_token_id": 1, "eos_token_id": 0, "pad_token_id": None}
    assert json.loads((folder / "generation_config.json").read_text()) == ids
    assert ids.items() <= config.items()


def test_every_end_that_the_file_names_is_one(tmp_path: Path) -> None:
    folder = converted(tmp_path, options={"eot_token_id": 2, "eom_token_id": 5})
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [0, 2, 5]


def test_control_tokens_that_always_end_a_text_need_not_be_named(tmp_path: Path) -> None:
    folder = converted(tmp_path, options={"eos_token_id": 1})
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [1, 0]


def test_an_id_beyond_the_vocabulary_is_as_good_as_none(tmp_path: Path) -> None:
    folder = converted(tmp_path, options={"pad_token_id": VOCAB})
    assert json.loads((folder / "config.json").read_text())["pad_token_id"] is None
    assert "pad_token" not in json.loads((folder / "tokenizer_config.json").read_text())


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


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("end", [True, False])
def test_start_and_end_are_added_where_the_file_says_so(tmp_path: Path, start: bool, end: bool) -> None:
    tokenizer = Tokenizer.load(converted(tmp_path, options={"add_bos_token": start, "add_eos_token": end}))
    assert tokenizer.encode("b") == [1] * start + tokenizer.encode("b", add_special_tokens=False) + [0] * end


@pytest.mark.parametrize(("pre", "starts"), [("gpt-2", False), ("llama-bpe", True)])
def test_where_the_file_does_not_say_the_pre_tokenizer_decides(tmp_path: Path, pre: str, starts: bool) -> None:
    tokenizer = Tokenizer.load(converted(tmp_path, pre=pre))
    assert tokenizer.encode("b")[0] == (1 if starts else tokenizer.encode("b", add_special_tokens=False)[0])


def test_chat_templates_by_name(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "hello"}, {"name": "tool_use", "template": "with tools"}]
    folder = converted(tmp_path, options={"chat_template": templates})
    template = ChatTemplate.load(folder, Tokenizer.load(folder))
    message = [{"role": "user", "content": "?"}]
    assert template.render(message) == "hello"
    assert template.render(message, tools=[{"type": "function", "function": {"name": "f"}}]) == "with tools"


def test_rotary_factors_of_one_are_ignored_and_others_refused(tmp_path: Path) -> None:
    ones = np.ones(HEAD // 2, np.float32)
    folder = converted(tmp_path, raw={"rope_freqs.weight": (ones, GGMLQuantizationType.F32)})
    assert "rope" not in str(list(load_file(folder / "model.safetensors")))
    with pytest.raises(ModelError, match=r"rope_freqs\.weight that do not follow Llama 3's rule"):
        refused(tmp_path, raw={"rope_freqs.weight": (np.arange(1, 1 + HEAD // 2, dtype=np.float32), GGMLQuantizationType.F32)})


def refused(tmp_path: Path, **changes: Any) -> None:
    source = write_gguf(tmp_path / "other.gguf", tiny_weights(), **changes)
    folder = tmp_path / "other"
    folder.mkdir()
    try:
        convert(source, folder, progress=False)
    finally:
        assert not (folder / "model.safetensors").exists()


def one(name: str) -> dict[str, Any]:
    """A tensor more than the model has."""
    return {"raw": {name: (np.ones(HIDDEN, np.float32), GGMLQuantizationType.F32)}}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architecture": "minicpm"}, "architecture 'minicpm' .known: llama, qwen2, qwen3, gemma, gemma2, gptneox."),
        ({"model": "bert"}, "a 'bert' tokenizer; only 'gpt2' .* and 'llama'"),
        ({"pre": "falcon"}, "pre-tokenizer 'falcon', which is not one of gpt-2, smollm"),
        ({"metadata": {"llama.expert_count": 8}}, "llama.expert_count = 8"),
        ({"metadata": {"llama.attention.causal": False}}, "llama.attention.causal = False"),
        ({"metadata": {"llama.logit_scale": 16.0}}, "llama.logit_scale = 16"),
        ({"metadata": {"llama.rope.scaling.type": "longrope"}}, "scales its rotary positions by 'longrope'"),
        ({"metadata": {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.attn_factor": 0.5}}, "'yarn' with attn_factor 0.5"),
        ({"metadata": {"llama.rope.dimension_count": 8}}, "rotates 8 of the 16 dimensions"),
        ({"metadata": {"llama.attention.value_length": 8}}, "values of another size than keys"),
        ({"metadata": {"llama.attention.head_count_kv": [2, 1]}}, "layers that differ .llama.attention.head_count_kv is a list"),
        ({"metadata": {"llama.attention.head_count_kv": 4}}, r"'blk\.0\.attn_k\.weight' with 32 rows, but .* call for 64"),
        ({"metadata": {"split.no": 0, "split.count": 3}}, "part 1 of 3; join the parts"),
        (one("blk.0.attn_sinks.weight"), r"'blk\.0\.attn_sinks\.weight' that a Llama of this shape does not have"),
        (one("blk.2.attn_norm.weight"), r"'blk\.2\.attn_norm\.weight' that a Llama of this shape does not have"),
        (one("token_embd_norm.weight"), r"'token_embd_norm\.weight' that a Llama of this shape does not have"),
        (one("blk.0.attn_q.bias"), r"lacks 7 tensors, 'model\.layers\.0\.self_attn\.k_proj\.bias' first"),
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


def test_a_file_cut_anywhere_is_named(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "tiny.gguf", tiny_weights()).read_bytes()
    cut = tmp_path / "cut.gguf"
    for keep in (0, 3, 4, 8, 24, *range(25, 3000, 97), len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:keep])
        with pytest.raises(ModelError, match=r"cut\.gguf cannot be read as a GGUF file"):
            convert(cut, tmp_path, progress=False)


def test_the_other_byte_order_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "big.gguf", "llama", endianess=GGUFEndian.BIG)
    writer.add_tensor("token_embd.weight", np.ones((2, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"big\.gguf is a big-endian GGUF file"):
        convert(tmp_path / "big.gguf", tmp_path, progress=False)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    vocabulary = replace(plain_vocabulary(VOCAB), merges=None)
    source = write_hf_gguf(tmp_path / "tiny.gguf", "llama", CONFIG, tiny_weights(), vocabulary=vocabulary)
    with pytest.raises(ModelError, match=r"tiny\.gguf has no metadata 'tokenizer\.ggml\.merges'"):
        convert(source, tmp_path, progress=False)


def test_memory_holds_one_tensor_at_a_time(tmp_path: Path) -> None:
    rows = 240_000
    raw = {name: (np.ones((rows, HIDDEN), np.float16), GGMLQuantizationType.F16) for name in ("token_embd.weight", "output.weight")}
    source = write_gguf(tmp_path / "wide.gguf", tiny_weights(), raw=raw)
    del raw
    tracemalloc.start()
    try:
        convert(source, tmp_path, progress=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.6 * 4 * rows * HIDDEN  # two tensors, or all of one dequantised at once, would be twice its size


@pytest.mark.parametrize("content", [b"PK\x03\x04 not this one", b"<!DOCTYPE html>" * 100, b"GGUF" + b"\xff" * 500])
def test_another_kind_of_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "page.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=r"page\.gguf cannot be read as a GGUF file"):
        convert(tmp_path / "page.gguf", tmp_path, progress=False)


def test_the_default_model_completes_sensibly(model_folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    load: Any = AutoModelForCausalLM.from_pretrained
    model, info = load(model_folder, output_loading_info=True)
    assert not any(info.values())
    assert model.dtype == torch.float32
    prompt = AutoTokenizer.from_pretrained(model_folder)("The capital of France is", return_tensors="pt")
    tokens = model.generate(**prompt, max_new_tokens=1, do_sample=False)[0]
    assert Tokenizer.load(model_folder).decode(tokens.tolist()) == "The capital of France is Paris"
