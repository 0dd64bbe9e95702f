"""A model whose answers take no time and make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_model import write_small_model


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    return write_small_model(tmp_path_factory.mktemp("small"), model_folder)
