"""Triton's interpreter (``TRITON_INTERPRET=1``) made right where it is silently wrong.

The interpreter of Triton 3.7 holds a bfloat16 as its 16 bits in a uint16. It gives those integers to numpy's matmul, so that a
``tl.dot`` of bfloat16 operands is a product of garbage, and to numpy's casts, so that any cast but to and from float32 is, too. From
a float32 it cuts 16 bits off, where a GPU rounds to the nearest, the even one of two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_dot = InterpreterBuilder.create_dot
_cast = InterpreterBuilder.cast_impl


def patch() -> None:
    """Mend ``tl.dot`` and casts of bfloat16 in the interpreter of this process. Calling it again changes nothing."""
    InterpreterBuilder.create_dot = _dot_of_widened  # pyright: ignore[reportAttributeAccessIssue]
    InterpreterBuilder.cast_impl = _cast_by_float32  # pyright: ignore[reportAttributeAccessIssue]


def _dot_of_widened(builder: InterpreterBuilder, left: TensorHandle, right: TensorHandle, *rest: Any) -> TensorHandle:
    """``create_dot`` with bfloat16 operands in float32, in which their products are exact."""
    return _dot(builder, _widened(left), _widened(right), *rest)


def _cast_by_float32(builder: InterpreterBuilder, value: TensorHandle, to: tl.dtype) -> TensorHandle:
    """``cast_impl`` of a bfloat16, or to one, by way of float32, which holds each of them."""
    if to.scalar != tl.bfloat16:
        return _cast(builder, _widened(value), to)
    if value.dtype.scalar == tl.bfloat16:
        return value
    return TensorHandle(_rounded(_cast(builder, value, tl.float32).data), tl.bfloat16)


def _widened(operand: TensorHandle) -> TensorHandle:
    """A bfloat16 operand in float32; any other as it is."""
    if operand.dtype.scalar != tl.bfloat16:
        return operand
    return TensorHandle((operand.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _rounded(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16s, of two the even one; what is no number stays none."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    half = 0x7FFF + ((bits >> 16) & 1)
    with np.errstate(over="ignore"):  # of what is no number, which is not taken
        nearest = (bits + half) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, nearest).astype(np.uint16)
