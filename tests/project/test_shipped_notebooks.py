"""What a saved notebook may hold: nothing of the machine it was made on, and nothing that cannot come out the same (C75)."""

from __future__ import annotations

import getpass
import json
import re
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
PRIVATE = re.compile(r"/home/\w+|/root\b|/Users/\w+|/work/\w+|[A-Z]:\\\\Users|\b[\w.]+@[\w-]+\.\w{2,}\b")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@each_notebook
def test_its_kernel_is_everywhere(path: Path) -> None:
    assert nbformat.read(path, as_version=4).metadata["kernelspec"]["name"] == "python3"


def texts(path: Path) -> list[str]:
    """Sources, text outputs and metadata; pictures left out."""
    notebook = nbformat.read(path, as_version=4)
    data = [value for cell in notebook.cells for output in cell.get("outputs", []) for value in output.get("data", {}).items()]
    shown = [json.dumps(value) for kind, value in data if not kind.startswith("image/")]
    streams = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    return [json.dumps(notebook.metadata), *(cell.source for cell in notebook.cells), *shown, *streams]


@each_notebook
def test_it_names_no_private_path_and_no_person(path: Path) -> None:
    user = getpass.getuser()
    names = re.compile(rf"\b{user}\b" if user not in ("root", "user", "runner") else PRIVATE.pattern)
    found = [match[0] for text in texts(path) for pattern in (PRIVATE, names) if (match := pattern.search(text))]
    assert found == []


@pytest.mark.parametrize("text", ["/home/someone/x", "/root/.cache", "/Users/me", "someone@example.org"])
def test_what_is_private_is_seen(text: str) -> None:
    assert PRIVATE.search(text)


@each_notebook
def test_it_holds_no_state_of_widgets(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert "widgets" not in notebook.metadata
    kinds = {kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}
    assert "application/vnd.jupyter.widget-view+json" not in kinds


@each_notebook
def test_no_cell_wrote_to_stderr_or_failed(path: Path) -> None:
    outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.get("name") == "stderr" or output.output_type == "error"] == []
