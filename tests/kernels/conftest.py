"""Kernels run in Triton's interpreter here, with its bfloat16 dots mended."""

from __future__ import annotations

from mqlab_kernels import interpreter

interpreter.patch()
