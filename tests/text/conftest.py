"""The default model's tokenizer, ours and transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqlab.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> Tokenizer:
    return Tokenizer.load(model_folder)


@pytest.fixture(scope="session")
def reference(model_folder: Path) -> Any:
    """transformers' tokenizer of the same folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_folder)
