"""What a model argument may be, and how fast and clearly a wrong one fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest
from tiny_gguf import tiny_weights, write_gguf

from mqlab.errors import ModelError
from mqlab.models import resolve as resolving
from mqlab.models.resolve import load_config, resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The least that counts as a model folder."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "tokenizer.json").write_text("{}")
    return path


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks the hub fails the test."""

    def ask(repo: str) -> Path:
        pytest.fail(f"asked the hub for {repo}")

    monkeypatch.setattr(resolving, "from_hub", ask)


def test_a_known_name_is_the_fetched_folder(model_folder: Path) -> None:
    assert load_config(model_folder)["hidden_size"] == 576


def test_a_folder_is_itself(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(folder), tmp_path) == folder
    monkeypatch.chdir(tmp_path)
    assert resolve("model", tmp_path) == folder
    assert resolve("./model/", tmp_path) == folder
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/model", tmp_path) == folder


def test_a_gguf_file_is_converted_once_for_each_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_gguf(tmp_path / "tiny.gguf", tiny_weights())
    first = resolve(str(source), tmp_path / "cache", progress=False)
    assert load_config(first)["model_type"] == "llama"
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert resolve(str(source), tmp_path / "cache", progress=False) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    write_gguf(source, tiny_weights(tied=False))
    assert resolve(str(source), tmp_path / "cache", progress=False) != first


CONVERT = """
import sys
from pathlib import Path
from mqlab.models.resolve import resolve
print(resolve(sys.argv[1], Path(sys.argv[2]), progress=False))
"""


def test_two_processes_at_once_get_the_same_folder(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "tiny.gguf", tiny_weights())
    command = [sys.executable, "-c", CONVERT, str(source), str(tmp_path / "cache")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert printed[0] == printed[1]
    assert (Path(printed[0].strip()) / "model.safetensors").is_file()


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    "model", ["/no/such/folder", "./missing", "../missing", "~/no-such-model", "missing/", "a/b/c", "org/model.gguf", "nonsense"]
)
def test_what_cannot_be_a_hub_id_is_refused_at_once(tmp_path: Path, model: str) -> None:
    with pytest.raises(ModelError, match=r"pass a known name \(smollm2-135m") as caught:
        resolve(model, tmp_path)
    assert repr(model) in str(caught.value)


@pytest.mark.usefixtures("no_hub")
def test_a_folder_that_cannot_be_served_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=rf"{folder} holds no tokenizer\.json"):
        resolve(str(folder), tmp_path)
    for content, complaint in (
        ("{nonsense", r"config\.json cannot be read: Expecting"),
        ("[1]", "holds a list, not an object"),
        ("\xff", "cannot be read"),
    ):
        (folder / "config.json").write_text(content, encoding="latin-1")
        with pytest.raises(ModelError, match=complaint):
            resolve(str(folder), tmp_path)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=rf"{folder} holds no config\.json"):
        resolve(str(folder), tmp_path)


@pytest.mark.usefixtures("no_hub")
def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.touch()
    with pytest.raises(ModelError, match=r"model\.bin is a file, but not a \.gguf file"):
        resolve(str(file), tmp_path)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's library, and an address where no hub answers."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    return cache


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize("offline", [True, False])
def test_a_hub_id_without_a_hub_is_refused(tmp_path: Path, offline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(
        ModelError, match=r"no folder 'org/name', and the model hub gave no such model \((OfflineModeIsEnabled|ConnectError)"
    ):
        resolve("org/name", tmp_path)


@pytest.mark.parametrize("offline", [True, False])
def test_a_hub_id_in_the_hubs_cache_needs_no_hub(
    tmp_path: Path, folder: Path, hub_cache: Path, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0" * 40
    snapshot = hub_cache / "models--org--name" / "snapshots" / commit
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    (hub_cache / "models--org--name" / "refs").mkdir()
    (hub_cache / "models--org--name" / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    assert json.loads((resolve("org/name", tmp_path) / "config.json").read_text()) == {"model_type": "llama"}
