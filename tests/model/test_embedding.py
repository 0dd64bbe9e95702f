"""Which matrix becomes the embedding and which the output projection, whatever a checkpoint states of the two."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from mqlab.errors import ModelError
from mqlab.model.architecture import read_architecture
from mqlab.model.dummy import DummyWeights
from mqlab.model.embedding import read_ends
from mqlab.model.weights import SINGLE, Weights
from mqlab.models.resolve import load_config

MakeModel = Callable[..., Any]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def ends(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    return read_ends(read_architecture(load_config(folder)), Weights(folder, torch.float32))


def assert_as_transformers(folder: Path) -> None:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    embedding, head = ends(folder)
    assert torch.equal(embedding, model.get_input_embeddings().weight)
    assert torch.equal(head, model.get_output_embeddings().weight)


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / SINGLE, {"format": "pt"})


@pytest.mark.parametrize("family", ["Llama", "GPTNeoX"])
@pytest.mark.parametrize("tied", [True, False])
def test_as_saved(family: str, tied: bool, make_model: MakeModel, tmp_path: Path) -> None:
    make_model(family, tie_word_embeddings=tied)
    assert_as_transformers(tmp_path)
    embedding, head = ends(tmp_path)
    assert (embedding is head) == tied, "a tied matrix is held once"


def test_a_tied_model_whose_file_states_the_same_matrix_twice(
    make_model: MakeModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_model(tie_word_embeddings=True)
    rewrite(tmp_path, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING]}))
    embedding, head = ends(tmp_path)
    assert embedding is head
    assert not caplog.records


def test_a_tied_model_with_made_up_weights(make_model: MakeModel, tmp_path: Path) -> None:
    make_model(tie_word_embeddings=True)
    embedding, head = read_ends(read_architecture(load_config(tmp_path)), DummyWeights(torch.float32))
    assert embedding is head


def test_a_tied_model_whose_file_states_two_matrices(make_model: MakeModel, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_model(tie_word_embeddings=True)
    rewrite(tmp_path, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING] + 1}))
    with caplog.at_level(logging.WARNING, "mqlab.model"):
        assert_as_transformers(tmp_path)
    assert f"ties {HEAD} to {EMBEDDING}" in caplog.text


def test_a_tied_model_whose_file_states_the_output_projection_alone(make_model: MakeModel, tmp_path: Path) -> None:
    make_model(tie_word_embeddings=True)
    rewrite(tmp_path, lambda tensors: tensors.update({HEAD: tensors.pop(EMBEDDING)}))
    assert_as_transformers(tmp_path)


@pytest.mark.parametrize(("family", "name"), [("Llama", HEAD), ("Llama", EMBEDDING), ("GPTNeoX", "embed_out.weight")])
def test_an_untied_model_that_lacks_one_is_refused(family: str, name: str, make_model: MakeModel, tmp_path: Path) -> None:
    make_model(family)
    rewrite(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(ModelError, match=f"no tensor '{name}', which config.json calls for"):
        ends(tmp_path)


def test_the_output_projection_of_gpt_neox_has_two_names(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("GPTNeoX")
    rewrite(tmp_path, lambda tensors: tensors.update({HEAD: tensors.pop("embed_out.weight")}))
    assert torch.equal(ends(tmp_path)[1], model.lm_head.weight)
