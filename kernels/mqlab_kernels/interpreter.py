"""Triton's interpreter (``TRITON_INTERPRET=1``) made right where it is silently wrong.

The interpreter of Triton 3.7 holds a bfloat16 as its 16 bits in a uint16 and gives those integers to numpy's matmul, so that a ``tl.dot``
of bfloat16 operands is a product of garbage. Kernels of this package compute in float32 but for dots, which tensor cores do in bfloat16:
only that needs mending.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_dot = InterpreterBuilder.create_dot


def patch() -> None:
    """Let ``tl.dot`` take bfloat16 operands in the interpreter of this process. Calling it again changes nothing."""
    InterpreterBuilder.create_dot = _dot_of_widened  # pyright: ignore[reportAttributeAccessIssue]


def _dot_of_widened(builder: InterpreterBuilder, left: TensorHandle, right: TensorHandle, *rest: Any) -> TensorHandle:
    """``create_dot`` with bfloat16 operands in float32, in which their products are exact."""
    return _dot(builder, _widened(left), _widened(right), *rest)


def _widened(operand: TensorHandle) -> TensorHandle:
    """A bfloat16 operand in float32; any other as it is."""
    if operand.dtype.scalar != tl.bfloat16:
        return operand
    return TensorHandle((operand.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
