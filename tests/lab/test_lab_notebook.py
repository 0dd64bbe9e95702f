"""The shipped notebook is a test that can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "00_quickstart.ipynb"


def first_failure(notebook: Path, **environment: str) -> str:
    """Run nbval until a cell fails; the name of that cell, empty when none does."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(notebook.parent)]
    nbval = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=60", str(notebook)]
    done = subprocess.run(
        [*command, *nbval], cwd=notebook.parent, env={**os.environ, **environment}, capture_output=True, text=True, timeout=110
    )
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert bool(failed) == (done.returncode == 1), done.stdout + done.stderr
    return failed[0].partition("::")[2].partition(" - ")[0] if failed else ""


def changed(tmp_path: Path, old: str, new: str) -> Path:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert any(old in cell.source for cell in notebook.cells)
    for cell in notebook.cells:
        cell.source = cell.source.replace(old, new)
    path = tmp_path / "notebook.ipynb"
    nbformat.write(notebook, path)
    return path


@pytest.mark.parametrize(
    "broken",
    ["raise ImportError('broken')", "", "def load_ipython_extension(shell):\n    pass\n"],
    ids=["raises", "is no extension", "registers nothing"],
)
def test_broken_extension_fails_the_first_cell(tmp_path: Path, broken: str) -> None:
    (tmp_path / "mqlab").mkdir()
    (tmp_path / "mqlab" / "__init__.py").write_text(broken)
    copy = changed(tmp_path, "%load_ext mqlab", "%load_ext mqlab")
    assert first_failure(copy, PYTHONPATH=str(tmp_path)) == "Cell 0"


def test_wrong_model_fails_the_serving_cell(tmp_path: Path) -> None:
    copy = changed(tmp_path, "serve smollm2-135m", "serve /no/such/model")
    assert first_failure(copy) == "Cell 1"


def test_wrong_argument_fails_the_serving_cell(tmp_path: Path) -> None:
    copy = changed(tmp_path, "--topology mq", "--topology ring")
    assert first_failure(copy) == "Cell 1"


def test_is_saved_with_its_outputs_and_small() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kinds = {kind for cell in code for output in cell.outputs for kind in output.get("data", {})}
    assert all(cell.execution_count for cell in code)
    assert {"text/plain", "text/html", "image/png"} <= kinds
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    assert NOTEBOOK.stat().st_size < 1_000_000
