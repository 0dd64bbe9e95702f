"""The streamed file is what the safetensors library reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from mqlab.models.safetensors_stream import write_float32


def test_the_library_reads_it(tmp_path: Path) -> None:
    tensors = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b.weight": np.ones((5,), np.float32),
        "c": np.eye(3, dtype=np.float32).T[::-1],
    }
    path = tmp_path / "model.safetensors"
    write_float32(path, {name: values.shape for name, values in tensors.items()}, iter(tensors.values()))
    got = load_file(path)
    assert set(got) == set(tensors)
    for name, values in tensors.items():
        np.testing.assert_array_equal(got[name], values)
    with safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a has shape \(2,\), not \(3,\)"):
        write_float32(tmp_path / "x", {"a": (3,)}, [np.ones(2, np.float32)])
    with pytest.raises(ValueError, match="b is missing"):
        write_float32(tmp_path / "x", {"a": (2,), "b": (2,)}, [np.ones(2, np.float32)])
    with pytest.raises(ValueError, match="more tensors than were announced"):
        write_float32(tmp_path / "x", {"a": (2,)}, [np.ones(2, np.float32)] * 2)
