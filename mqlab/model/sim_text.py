"""The text that simulated models speak: Python's own documentation, which comes with the interpreter."""

from __future__ import annotations

import hashlib
from array import array
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from mqlab.models.cachefolder import build_once
from mqlab.text.tokenizer import Tokenizer

_FILE = "ids.npy"


def sim_text(folder: Path, cache: Path, eos: int | None, vocab: int) -> array[int]:
    """Some 100,000 token ids of English, in the tokenizer of a model folder; encoded once, and kept in the cache.

    Args:
        folder: with tokenizer.json.
        cache: mqlab's.
        eos: the end token, put behind each of the documents, of 1,400 tokens on average; None for none.
        vocab: ids from here on, which the model cannot draw, are left out.

    Raises:
        ModelError: the tokenizer cannot be read, or the cache not be written.
    """
    texts = list(topics.values())
    content = "\0".join([*texts, f"{eos} {vocab}"]).encode() + (folder / "tokenizer.json").read_bytes()
    name = f"sim-text-{hashlib.sha256(content).hexdigest()[:12]}"
    kept = build_once(cache / "models" / name, lambda target: np.save(target / _FILE, _encoded(folder, texts, eos, vocab)))
    return array("i", np.load(kept / _FILE).tobytes())


def _encoded(folder: Path, texts: list[str], eos: int | None, vocab: int) -> np.ndarray:
    tokenizer = Tokenizer.load(folder)
    end = [] if eos is None else [eos]
    ids = [token for text in texts for token in (*tokenizer.encode(text, add_special_tokens=False), *end)]
    return np.array([token for token in ids if token < vocab], np.int32)
