"""The shipped notebooks in JupyterLab: they run through, and are pictured for people to look at."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from jupyterpage import Lab, Notebook

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_through(path: Path, lab: Lab, open_notebook: Callable[..., Notebook]) -> None:
    shutil.copy(path, lab.root)
    profiles = lab.root.parent / "profiles"  # where a notebook of the repository finds the committed runs
    if not profiles.exists():
        profiles.symlink_to(ROOT / "profiles")
    notebook = open_notebook(path.name)
    notebook.run_all()
    assert notebook.failures() == []
    for theme in ("dark", "light"):
        notebook.theme(theme)
        notebook.screenshot(ROOT / "out" / "browser" / f"{path.stem}-{theme}.png")
