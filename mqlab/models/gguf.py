"""A GGUF file of a model class that is known here becomes a Hugging Face folder.

Weights are dequantised to float32: rounding the sums ``d*q + m`` of Q4_1 to 16 bits would change them (float16: relative
error 2e-4, at most 2e-3 absolute on SmolLM2-135M), and the folder is the reference that every runner is compared with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONVERTER = 2
"""Part of every cache key: raise it when the same file would convert to something else."""


def convert(source: Path, folder: Path, *, progress: bool = True) -> None:
    """Fill an existing, empty ``folder`` from the GGUF file ``source``.

    Writes config.json, generation_config.json, tokenizer.json, tokenizer_config.json and model.safetensors (float32).

    Raises:
        ModelError: not a GGUF file, or an architecture, tokenizer, tensor or setting that is not known here.
    """
    # Here, since every command that names a model imports this module: gguf and numpy are a quarter of its start.
    from mqlab.models.gguf_config import generation_config, hf_config
    from mqlab.models.gguf_metadata import open_gguf
    from mqlab.models.gguf_tokenizer import build_tokenizer, tokenizer_config
    from mqlab.models.gguf_weights import write_weights

    meta = open_gguf(source)
    config = hf_config(meta)
    tokenizer = build_tokenizer(meta)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config(config))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(meta))
    tokenizer.save(str(folder / "tokenizer.json"))
    write_weights(meta, config, folder / "model.safetensors", progress=progress)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
