"""What the engine tells its clients about the model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mqlab.config import EngineConfig, check
from mqlab.model.shape import ModelShape
from mqlab.types import ModelInfo


def model_info(config: EngineConfig, folder: Path, arch: ModelShape, dtype: str, num_blocks: int) -> ModelInfo:
    """Limits and names of a model that is about to be served.

    Args:
        dtype: its name, such as bfloat16.

    Raises:
        ConfigError: max_model_len is above the model's, or the pool cannot hold a prompt and its first token.
    """
    max_len = context_limit(config, arch)
    pool = num_blocks * config.block_size
    check(min(max_len, pool) >= 2, config, "num_kv_blocks", f"gives {pool} tokens of KV cache; a prompt token and a new one need 2")
    return ModelInfo(
        name=config.served_model_name or _given_name(config.model),
        path=str(folder),
        architecture=arch.name,
        dtype=dtype,
        vocab_size=arch.vocab,
        max_model_len=max_len,
        max_prompt_len=min(max_len, pool) - 1,
        eos_token_ids=tuple(token for token in eos_token_ids(folder) if 0 <= token < arch.vocab),
        num_blocks=num_blocks,
        block_size=config.block_size,
        pid=os.getpid(),
        hidden_size=arch.hidden,
        max_num_seqs=config.max_num_seqs,
    )


def context_limit(config: EngineConfig, arch: ModelShape) -> int:
    """Prompt and new tokens together.

    Raises:
        ConfigError: the config asks for more than the model has.
    """
    asked = config.max_model_len or arch.max_len
    check(asked <= arch.max_len, config, "max_model_len", f"is above the model's own limit; pass at most {arch.max_len}")
    return asked


def eos_token_ids(folder: Path) -> tuple[int, ...]:
    """Every end token that generation_config.json, config.json or the tokenizer names, ascending."""
    found = {token for file in ("generation_config.json", "config.json") for token in _as_ids(_read(folder / file).get("eos_token_id"))}
    return tuple(sorted(found | _tokenizer_eos(folder)))


def _tokenizer_eos(folder: Path) -> set[int]:
    text = _read(folder / "tokenizer_config.json").get("eos_token")
    text = text.get("content") if isinstance(text, dict) else text
    if not isinstance(text, str):
        return set()
    tokenizer = _read(folder / "tokenizer.json")
    return {one["id"] for one in tokenizer.get("added_tokens") or () if one.get("content") == text}


def _as_ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, int)]


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where the file, which is optional here, is missing or broken."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _given_name(model: str) -> str:
    """A path is served under its last part, a name or hub id under itself."""
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model
