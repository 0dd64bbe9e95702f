"""A GGUF file of a Llama-shaped model becomes a Hugging Face folder.

Weights are dequantised to float32: rounding the sums ``d*q + m`` of Q4_1 to 16 bits would change them (float16: relative
error 2e-4, at most 2e-3 absolute on SmolLM2-135M), and the folder is the reference that every runner is compared with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from mqlab.errors import ModelError
from mqlab.models.gguf_config import Metadata, generation_config, llama_config
from mqlab.models.gguf_tokenizer import build_tokenizer, tokenizer_config
from mqlab.models.gguf_weights import write_weights

CONVERTER = 1
"""Part of every cache key: raise it when the same file would convert to something else."""


def convert(source: Path, folder: Path, *, progress: bool = True) -> None:
    """Fill an existing, empty ``folder`` from the GGUF file ``source``.

    Writes config.json, generation_config.json, tokenizer.json, tokenizer_config.json and model.safetensors (float32).

    Raises:
        ModelError: not a GGUF file, or an architecture, tokenizer or tensor that is not known here.
    """
    reader = _open(source)
    meta = Metadata(source, reader)
    config = llama_config(meta)
    tokenizer = build_tokenizer(meta)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config(config))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(meta))
    tokenizer.save(str(folder / "tokenizer.json"))
    write_weights(source, reader.tensors, config, folder / "model.safetensors", progress=progress)


def _open(source: Path) -> GGUFReader:
    try:
        return GGUFReader(source)
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise ModelError(f"{source} cannot be read as a GGUF file: {error}; check that the download is complete") from error


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
