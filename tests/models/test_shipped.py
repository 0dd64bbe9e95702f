"""Shapes without weights: found by name when made-up weights are asked for, with a tokenizer that fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqlab.config import Settings
from mqlab.errors import ModelError
from mqlab.models.resolve import load_config, resolve, resolve_dummy
from mqlab.models.shipped import SHIPPED
from mqlab.text.tokenizer import Tokenizer


@pytest.fixture
def cache(model_folder: Path, tmp_path: Path) -> Path:
    """A cache that holds the default model and nothing else."""
    (tmp_path / "cache" / "models").mkdir(parents=True)
    (tmp_path / "cache" / "models" / model_folder.name).symlink_to(model_folder)
    return tmp_path / "cache"


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_name_is_a_folder_with_a_shape_and_a_tokenizer(name: str, cache: Path, model_folder: Path) -> None:
    folder = resolve(name, cache, load_format="dummy")
    assert folder.parent == cache / "models"
    assert {path.name for path in folder.iterdir()} == {"config.json", "tokenizer.json", "tokenizer_config.json"}
    tokenizer, given = Tokenizer.load(folder), Tokenizer.load(model_folder)
    ids = tokenizer.encode("Wiederholung ist langweilig.")
    assert ids == given.encode("Wiederholung ist langweilig.")
    vocab = load_config(folder)["vocab_size"]
    assert tokenizer.vocab_size <= vocab
    assert tokenizer.decode([*ids, vocab - 1]) == "Wiederholung ist langweilig."


def test_the_second_time_it_is_there(cache: Path) -> None:
    first = resolve_dummy("pythia-70m", cache)
    stamp = (first / "tokenizer.json").stat().st_mtime_ns
    assert resolve_dummy("pythia-70m", cache) == first
    assert (first / "tokenizer.json").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_name_without_weights_says_what_to_pass(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"'{name}' is a shape without weights; pass --load-format dummy"):
        resolve(name, tmp_path)


def test_an_unknown_name_is_refused_with_the_shapes_there_are(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"no model is known as 'pythia'.*with --load-format dummy also {', '.join(SHIPPED)}"):
        resolve("pythia", tmp_path, load_format="dummy")


def test_any_folder_with_a_shape_will_do(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 60000}))
    made = resolve_dummy(str(folder), cache)
    assert load_config(made) == load_config(folder)
    assert Tokenizer.load(made).encode("a b")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 60001}))
    assert resolve_dummy(str(folder), cache) != made
    (folder / "tokenizer.json").write_text("{}")
    assert resolve_dummy(str(folder), cache) == folder


def test_a_vocabulary_that_is_too_small_is_refused(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 97}))
    with pytest.raises(ModelError, match=r"small has no tokenizer\.json, and its vocabulary \(97\) is too small for the 49152 tokens"):
        resolve_dummy(str(folder), cache)


def test_a_model_with_weights_lends_its_shape(model_folder: Path) -> None:
    assert resolve_dummy("smollm2-135m", Settings.read().cache_dir) == model_folder
