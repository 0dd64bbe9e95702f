"""Which tensors are taken from a folder, and what is said when one is wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from plans import lines
from safetensors.torch import load_file, save_file

from mqlab.errors import ModelError
from mqlab.model.accel.backends.registry import BACKENDS
from mqlab.model.accel.decoder import DeviceDecoder
from mqlab.model.accel.products import DenseProduct
from mqlab.model.architecture import Architecture, read_architecture
from mqlab.model.batch import BatchTensors
from mqlab.model.decoder import Decoder
from mqlab.model.kv import allocate
from mqlab.model.making import Making
from mqlab.model.weights import INDEX, SINGLE, Weights
from mqlab.models.resolve import load_config
from mqlab.plan import Plan

MakeModel = Callable[..., Any]
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def sharded(make_model: MakeModel, tmp_path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a model that ``tmp_path`` holds in shards."""
    tensors = make_model(shard="100KB").state_dict()
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    return tensors


def assert_equal(folder: Path, tensors: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32) -> None:
    weights = Weights(folder, dtype)
    for name, tensor in tensors.items():
        torch.testing.assert_close(weights.read(name, *tensor.shape), tensor.to(dtype), rtol=0, atol=0)


def test_shards(sharded: dict[str, torch.Tensor], tmp_path: Path) -> None:
    assert_equal(tmp_path, sharded)


def test_files_that_the_index_does_not_list_are_noted_and_ignored(
    sharded: dict[str, torch.Tensor], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scrambled = {name: torch.full_like(tensor, 9) for name, tensor in sharded.items()}
    for name in (SINGLE, "consolidated.safetensors", "zz.safetensors"):
        save_file(scrambled, tmp_path / name)
    (tmp_path / "pytorch_model.bin").write_bytes(b"junk")
    with caplog.at_level(logging.WARNING, "mqlab.model"):
        assert_equal(tmp_path, sharded)
    for name in (SINGLE, "consolidated.safetensors", "zz.safetensors", "pytorch_model.bin"):
        assert name in caplog.text


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_scrambled_files_beside_the_right_ones_leave_the_answers_alone(
    tied: bool, stored: torch.dtype, make_model: MakeModel, tmp_path: Path
) -> None:
    make_model(dtype=stored, tie_word_embeddings=tied)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    scrambled = {name: torch.randn_like(tensor) for name, tensor in load_file(tmp_path / SINGLE).items()}
    for name in ("consolidated.safetensors", "model-00001-of-00002.safetensors", "a.safetensors"):
        save_file(scrambled, tmp_path / name)
    torch.save(scrambled, tmp_path / "pytorch_model.bin")
    arch = read_architecture(load_config(tmp_path))
    decoder, cache = Decoder(arch, Weights(tmp_path, torch.float32), 64), allocate(arch, 1, 32, torch.float32)
    (line,) = lines([range(30)], [0], 32)
    actual = decoder.logits(decoder.states(BatchTensors.of(Plan((line.chunk(0, 30),)), 32), cache))
    torch.testing.assert_close(actual, model(torch.tensor([line.tokens])).logits[0], atol=1e-4, rtol=0)


def test_a_tensor_is_taken_from_the_file_that_the_index_names(sharded: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """A listed shard may hold a second, wrong copy of a tensor of another shard."""
    file_of = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    other = next(file for file in file_of.values() if file != file_of[EMBEDDING])
    save_file({**load_file(tmp_path / other), EMBEDDING: torch.zeros_like(sharded[EMBEDDING])}, tmp_path / other)
    assert_equal(tmp_path, sharded)


def _on_device(arch: Architecture, source: Weights, max_len: int) -> DeviceDecoder:
    return DeviceDecoder(arch, source, max_len, BACKENDS["torch"](), Making(DenseProduct))


@pytest.mark.parametrize("decoder", [Decoder, _on_device], ids=["host", "device"])
def test_what_a_layer_lacks_is_told_on_a_line_of_its_own(
    decoder: Callable[..., object], make_model: MakeModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model()
    tensors = load_file(tmp_path / SINGLE)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, tmp_path / SINGLE)
    arch = read_architecture(load_config(tmp_path))
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp"):
        decoder(arch, Weights(tmp_path, torch.float32), arch.max_len)
    shown = capsys.readouterr().err
    assert "loading weights" in shown and shown.endswith("\n"), "the bar's line is over"


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("run", [torch.float32, torch.bfloat16])
def test_weights_are_cast_to_the_run(stored: torch.dtype, run: torch.dtype, make_model: MakeModel, tmp_path: Path) -> None:
    assert_equal(tmp_path, make_model(dtype=stored).state_dict(), run)


def test_missing_shard(sharded: dict[str, torch.Tensor], tmp_path: Path) -> None:
    gone = sorted(tmp_path.glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelError, match=f"{gone.name}, which is missing"):
        Weights(tmp_path, torch.float32)


def test_a_shard_without_its_tensor(sharded: dict[str, torch.Tensor], tmp_path: Path) -> None:
    file = json.loads((tmp_path / INDEX).read_text())["weight_map"][EMBEDDING]
    save_file({"other": torch.zeros(1)}, tmp_path / file)
    with pytest.raises(ModelError, match=rf"{file} lacks '{EMBEDDING}'"):
        Weights(tmp_path, torch.float32).read(EMBEDDING, *sharded[EMBEDDING].shape)


def test_a_shard_may_lie_in_a_folder_and_must_be_named_by_a_text(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "part" / "one.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "part/one.safetensors"}}))
    assert Weights(tmp_path, torch.float32).read("a", 2).tolist() == [1, 1]
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": 5}}))
    with pytest.raises(ModelError, match="lists 5, which is missing"):
        Weights(tmp_path, torch.float32)


def test_what_nobody_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A bias that config.json does not ask for, not a table that older versions of transformers saved."""
    names = ("model.layers.0.q_proj.weight", "model.layers.0.q_proj.bias", "model.layers.0.self_attn.rotary_emb.inv_freq")
    save_file({name: torch.zeros(2) for name in names}, tmp_path / SINGLE)
    weights = Weights(tmp_path, torch.float32)
    weights.read(names[0], 2)
    weights.note_unread()
    (record,) = caplog.records
    assert record.getMessage().endswith(
        "has 1 tensors that config.json does not call for, and that are not used: model.layers.0.q_proj.bias"
    )
    weights.read(names[1], 2)
    caplog.clear()
    weights.note_unread()
    assert not caplog.records


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 5}', "{}"])
def test_broken_index(text: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ModelError, match=INDEX):
        Weights(tmp_path, torch.float32)


def test_truncated_file(make_model: MakeModel, tmp_path: Path) -> None:
    make_model()
    whole = (tmp_path / SINGLE).read_bytes()
    (tmp_path / SINGLE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        Weights(tmp_path, torch.float32)


def test_no_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"junk")
    with pytest.raises(ModelError, match="holds neither"):
        Weights(tmp_path, torch.float32)


def test_missing_tensor_wrong_shape_wrong_type(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(2, dtype=torch.int8)}, tmp_path / SINGLE)
    weights = Weights(tmp_path, torch.float32)
    with pytest.raises(ModelError, match="no tensor 'c'"):
        weights.read("c", 2)
    with pytest.raises(ModelError, match=r"'a' has shape \(2, 3\), but config.json calls for \(3, 2\)"):
        weights.read("a", 3, 2)
    with pytest.raises(ModelError, match=r"'b' is torch\.int8"):
        weights.read("b", 2)
