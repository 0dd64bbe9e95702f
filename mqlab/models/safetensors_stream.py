"""Write a .safetensors file tensor by tensor, so that memory holds one of them at a time.

The layout is that of safetensors 0.8: eight bytes with the header's length, a JSON header padded with spaces to a
multiple of eight, then the raw little-endian data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

import numpy as np


def write_float32(path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[np.ndarray]) -> None:
    """Write float32 ``tensors`` under the names and shapes of ``shapes``, in that order.

    Raises:
        ValueError: a tensor does not have the shape that was announced, or one is missing or too much.
    """
    left = iter(tensors)
    with path.open("wb") as file:
        file.write(_header(shapes))
        for name, shape in shapes.items():
            # without a name here, which would keep the tensor while the next one is made
            _write(file, name, shape, next(left, None))
    if next(left, None) is not None:
        raise ValueError("there are more tensors than were announced")


def _write(file: IO[bytes], name: str, shape: tuple[int, ...], tensor: np.ndarray | None) -> None:
    if tensor is None:
        raise ValueError(f"{name} is missing")
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {tensor.shape}, not {shape}")
    file.write(np.ascontiguousarray(tensor, dtype="<f4").data)


def _header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
