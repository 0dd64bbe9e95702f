"""Loads and stores of kernels in Triton's interpreter, held against the memory of the launch's tensors.

Without this a load past the end of a tensor reads what happens to be mapped there, and goes unnoticed where a mask drops it later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle

_begin = GridExecutor._init_args_hst
_load = InterpreterBuilder.create_masked_load
_store = InterpreterBuilder.create_masked_store


class Bounds:
    """The bytes that the launch at hand may touch: from the first to the last element of each of its tensors, as views have them."""

    def __init__(self) -> None:
        self._extents: list[tuple[int, int]] = []

    def begin(self, executor: GridExecutor, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
        """In place of the step before a launch."""
        tensors = [value for value in [*args, *kwargs.values()] if isinstance(value, Tensor) and value.numel()]
        self._extents = [(tensor.data_ptr(), tensor.data_ptr() + _reach(tensor)) for tensor in tensors]
        return _begin(executor, args, kwargs)

    def load(self, builder: InterpreterBuilder, pointers: TensorHandle, mask: TensorHandle, *rest: Any) -> Any:
        """In place of a load."""
        self._check("load", pointers, mask)
        return _load(builder, pointers, mask, *rest)

    def store(self, builder: InterpreterBuilder, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, *rest: Any) -> Any:
        """In place of a store."""
        self._check("store", pointers, mask)
        return _store(builder, pointers, value, mask, *rest)

    def _check(self, what: str, pointers: TensorHandle, mask: TensorHandle) -> None:
        places = pointers.data[mask.data.astype(bool)].astype(np.int64)
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        inside = np.zeros(places.shape, bool)
        for start, end in self._extents:
            inside |= (places >= start) & (places <= end - size)
        if not inside.all():
            raise IndexError(f"{np.count_nonzero(~inside)} elements of a {what} are in none of the launch's tensors")


def _reach(tensor: Tensor) -> int:
    """Bytes from its first to its last element."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a launch fail that loads or stores outside of its tensors, until the end of a test."""
    bounds = Bounds()
    monkeypatch.setattr(GridExecutor, "_init_args_hst", lambda *args: bounds.begin(*args))
    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", lambda *args: bounds.load(*args))
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", lambda *args: bounds.store(*args))
