"""Write a .safetensors file tensor by tensor, so that memory holds one of them at a time.

The layout is that of safetensors 0.8: eight bytes with the header's length, a JSON header padded with spaces to a
multiple of eight, then the raw little-endian data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np


def write_float32(path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[np.ndarray]) -> None:
    """Write float32 ``tensors`` under the names and shapes of ``shapes``, in that order.

    Raises:
        ValueError: a tensor does not have the shape that was announced, or one is missing.
    """
    with path.open("wb") as file:
        file.write(_header(shapes))
        for (name, shape), tensor in zip(shapes.items(), tensors, strict=True):
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
