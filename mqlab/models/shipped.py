"""Shapes of well-known models that come with the package: enough to run them with made-up weights."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from mqlab.errors import ModelError
from mqlab.models.cachefolder import build_once

_CONFIGS = Path(__file__).parent / "configs"
SHIPPED = tuple(sorted(path.stem for path in _CONFIGS.glob("*.json")))
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def shipped_config(name: str) -> str:
    """config.json of one of SHIPPED, as text. It names no end token: the tokenizer does."""
    return (_CONFIGS / f"{name}.json").read_text(encoding="utf-8")


def with_tokenizer(name: str, config: str, tokenizer: Path, cache: Path) -> Path:
    """A cached folder with a config.json and the tokenizer of another model's folder.

    Args:
        name: of the model, for the folder's.
        config: text of its config.json.
        tokenizer: the other model's folder.
        cache: mqlab's.

    Raises:
        ModelError: the tokenizer has ids that the model's vocabulary has not, or the cache cannot be written.
    """
    _check_vocabulary(name, config, tokenizer)
    key = hashlib.sha256(f"{config}\0{tokenizer.name}".encode()).hexdigest()[:12]

    def fill(folder: Path) -> None:
        (folder / "config.json").write_text(config, encoding="utf-8")
        for file in _TOKENIZER_FILES:
            if (tokenizer / file).is_file():
                shutil.copyfile(tokenizer / file, folder / file)

    return build_once(cache / "models" / f"{name}-dummy-{key}", fill)


def _check_vocabulary(name: str, config: str, tokenizer: Path) -> None:
    needed = json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    size = json.loads(config).get("vocab_size")
    if not isinstance(size, int) or size < needed:
        raise ModelError(
            f"{name} has no tokenizer.json, and its vocabulary ({size!r}) is too small for the {needed} tokens of the one that stands in; "
            "put a tokenizer.json beside its config.json"
        )
