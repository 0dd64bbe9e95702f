"""The names of the package: all there, loaded on use."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mqlab
from mqlab import errors

ROOT = Path(__file__).parents[2]


def test_every_exported_name_is_there() -> None:
    for name in mqlab.__all__:
        assert getattr(mqlab, name) is not None
    assert set(mqlab.__all__) <= set(dir(mqlab))


def test_every_error_is_exported() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == "mqlab.errors"}
    assert defined <= set(mqlab.__all__)
    assert mqlab.InvalidRequest is errors.InvalidRequest


def test_the_version_is_the_projects() -> None:
    assert mqlab.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'mqlab' has no attribute 'Nothing'"):
        _ = mqlab.Nothing  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError):
        importlib.import_module("mqlab.Nothing")


def test_llm_loads_no_model_code_before_it_is_made() -> None:
    code = "import sys; from mqlab import LLM, SamplingParams; print({'torch', 'transformers', 'matplotlib', 'IPython'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")


def test_load_ext_finds_the_magics(monkeypatch: pytest.MonkeyPatch) -> None:
    magics = importlib.import_module("mqlab.lab.magics")
    given: list[object] = []
    monkeypatch.setattr(magics, "load_ipython_extension", given.append)
    shell = object()
    mqlab.load_ipython_extension(shell)
    assert given == [shell]
