"""Weights of a model folder: safetensors, in one file or in shards that an index lists."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mqlab.errors import ModelError

logger = logging.getLogger("mqlab.model")

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_BUFFERS = (".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")
"""Ends of names of what older versions of transformers saved besides weights, and what is computed."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class TensorSource(Protocol):
    """Where a decoder's tensors come from."""

    def __contains__(self, name: str) -> bool:
        """Whether a checkpoint states the tensor; False of tensors that are made when asked for."""
        ...

    def read(self, name: str, *shape: int) -> Tensor:
        """One tensor of the expected shape, of the run's dtype, not shared with anything.

        Raises:
            ModelError: there is none, or it has another shape.
        """
        ...


class Weights:
    """Tensors of a folder by name, each read when asked for and cast to the run's dtype.

    With an index only the files that it lists are opened, each tensor from the file that the index names; other weight files in
    the folder are noted in the log and ignored.

    Args:
        folder: holds model.safetensors, or model.safetensors.index.json and its shards.
        dtype: what tensors are cast to.

    Raises:
        ModelError: no weights, a file that is missing or cannot be read.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._folder = folder
        self._dtype = dtype
        index = folder / INDEX
        file_of = _read_index(index) if index.is_file() else dict.fromkeys(_open_single(folder / SINGLE).keys(), SINGLE)
        self._files = {file: _open_file(folder / file) for file in sorted(set(file_of.values()))}
        self._file_of = file_of
        self._unread = {name for name in file_of if not name.endswith(_BUFFERS)}
        self._note_ignored()

    def __contains__(self, name: str) -> bool:
        """Whether the folder holds the tensor."""
        return name in self._file_of

    def read(self, name: str, *shape: int) -> Tensor:
        """One tensor of the expected shape.

        Raises:
            ModelError: the tensor is missing, of another shape, or neither float32, bfloat16 nor float16.
        """
        if name not in self:
            raise ModelError(f"{self._folder} has no tensor {name!r}, which config.json calls for; download or save the model again")
        self._unread.discard(name)
        file = self._file_of[name]
        try:
            tensor = self._files[file].get_tensor(name)
        except (OSError, MemoryError, RuntimeError) as error:
            raise unreadable(self._folder / file, error) from error
        except SafetensorError as error:
            raise ModelError(f"{self._folder / file} lacks {name!r}, which the index places there: {error}; download it again") from error
        # A copy, or one tensor would keep the whole file mapped.
        return self._checked(tensor, name, shape).to(self._dtype, copy=True)

    def _checked(self, tensor: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{self._folder}: {name!r} has shape {tuple(tensor.shape)}, but config.json calls for {shape}; they do not belong together"
            )
        if tensor.dtype not in _DTYPES:
            raise ModelError(f"{self._folder}: {name!r} is {tensor.dtype}; pass a model with float32, bfloat16 or float16 weights")
        return tensor

    def note_unread(self) -> None:
        """Say in the log which tensors nobody asked for: the model may compute something else than it was trained to."""
        if self._unread:
            some = ", ".join(sorted(self._unread)[:3])
            logger.warning(
                "%s has %d tensors that config.json does not call for, and that are not used: %s", self._folder, len(self._unread), some
            )

    def _note_ignored(self) -> None:
        ignored = sorted(path.name for path in self._folder.iterdir() if path.suffix in _WEIGHT_SUFFIXES and path.name not in self._files)
        if ignored:
            logger.warning("ignoring %s in %s: the model is in %s", ", ".join(ignored), self._folder, ", ".join(self._files))


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name, every file there."""
    try:
        file_of = {name: str(file) for name, file in dict(json.loads(path.read_text(encoding="utf-8"))["weight_map"]).items()}
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error!r}; download the model again") from error
    for file in sorted(set(file_of.values())):
        _require(path.parent / file, f"{path} lists {file}, which is missing; download it again")
    return file_of


def _open_single(path: Path) -> Any:
    _require(path, f"{path.parent} holds neither {SINGLE} nor {INDEX}; save the model with transformers' save_pretrained")
    return _open_file(path)


def _require(path: Path, message: str) -> None:
    if not path.is_file():
        raise ModelError(message)


def _open_file(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ModelError(f"{path} is not a whole safetensors file: {error}; download it again") from error
    except (OSError, MemoryError, RuntimeError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> ModelError:
    """The machine, not the file, is to blame: no permission, or not enough memory to map it."""
    return ModelError(f"{path} cannot be read: {error}; see that it may be read and that there is memory for it, or serve a smaller model")
