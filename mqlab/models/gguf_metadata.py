"""The key-value part and the tensor list of a GGUF file."""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFEndian, GGUFReader, ReaderTensor, TokenType

from mqlab.errors import ModelError

_MISSING = object()


class Metadata:
    """What a GGUF file says about its model; tensor data stay on disk until they are looked at.

    Attributes:
        source: the file.
        architecture: llama.cpp's name of the model class.
        tensors: by llama.cpp's names.
    """

    def __init__(self, source: Path, reader: GGUFReader) -> None:
        self.source = source
        self._fields = reader.fields
        self.tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture: str = self.get("general.architecture")

    def get(self, key: str, default: Any = _MISSING) -> Any:
        """The value of ``key``: a number, a string or a list.

        Raises:
            ModelError: there is none and no default was given.
        """
        if key in self._fields:
            return self._fields[key].contents()
        if default is _MISSING:
            raise ModelError(f"{self.source} has no metadata {key!r}; convert the model again with a current llama.cpp")
        return default

    def own(self, key: str, default: Any = _MISSING) -> Any:
        """The value of a key of this architecture: ``own("block_count")`` reads ``llama.block_count`` of a Llama."""
        return self.get(f"{self.architecture}.{key}", default)

    def decimal(self, key: str, default: Any = _MISSING) -> float:
        """Like ``own``, as the shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06."""
        return float(str(np.float32(self.own(key, default))))

    def token_id(self, role: str) -> int | None:
        """The id of the token that plays ``role``: bos, eos, eot, eom, unknown, padding; None where the file names none that exists."""
        token = self.get(f"tokenizer.ggml.{role}_token_id", None)
        return token if token is not None and 0 <= token < len(self.tokens) else None

    @cached_property
    def tokens(self) -> list[str]:
        """The vocabulary, by id."""
        return self.get("tokenizer.ggml.tokens")

    @cached_property
    def kinds(self) -> list[int]:
        """What each token is, by id, as gguf's TokenType numbers it; all are normal where the file does not say."""
        return self.get("tokenizer.ggml.token_type", None) or [TokenType.NORMAL] * len(self.tokens)

    def refuse(self, what: str) -> ModelError:
        """The error for a file that holds something which is not read from GGUF."""
        return ModelError(f"{self.source} {what}, which is not read from GGUF; pass a Hugging Face folder")


class _PlainReader(GGUFReader):
    """gguf's reader over plain arrays: it cuts one for every token, and as memmaps those of Llama 3 take 10 s and 1 GB."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, np.asarray(value) if name == "data" else value)


def open_gguf(source: Path) -> Metadata:
    """Read the head of ``source``.

    Raises:
        ModelError: not a GGUF file, cut short, of the other byte order, or one part of several.
    """
    try:
        reader = _PlainReader(source)
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError, OSError) as error:
        remedy = f"see that the download is complete, and of a format that gguf {version('gguf')} knows"
        raise ModelError(f"{source} cannot be read as a GGUF file: {error}; {remedy}") from error
    meta = Metadata(source, reader)
    if reader.endianess != GGUFEndian.LITTLE:
        raise ModelError(f"{source} is a big-endian GGUF file; download the little-endian one")
    if meta.get("split.count", 1) > 1:
        parts = f"part {meta.get('split.no') + 1} of {meta.get('split.count')}"
        raise ModelError(f"{source} is {parts}; join the parts with llama.cpp's llama-gguf-split --merge and pass the result")
    return meta
