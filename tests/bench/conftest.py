"""What tests of benches share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def noisy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python that starts from now on prints something before it does anything else."""
    (tmp_path / "sitecustomize.py").write_text("print('noise', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
