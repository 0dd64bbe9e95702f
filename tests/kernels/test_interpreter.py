"""Triton's interpreter, as kernels of this package need it."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from mqlab_kernels import interpreter


@triton.jit
def product_kernel(left, right, out):
    rows, columns = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    at = rows * 16 + columns
    tl.store(out + at, tl.dot(tl.load(left + at), tl.load(right + at), input_precision="ieee"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_are_right(dtype: torch.dtype) -> None:
    left, right = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    out = torch.empty(16, 16)
    product_kernel[(1,)](left, right, out)
    torch.testing.assert_close(out.double(), left.double() @ right.double(), rtol=0, atol=2e-5)


def test_integer_products_stay_exact() -> None:
    left, right = torch.randint(-128, 128, (2, 16, 16), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    out = torch.empty(16, 16, dtype=torch.int32)
    product_kernel[(1,)](left, right, out)
    assert torch.equal(out, left.int() @ right.int())


def test_patching_again_changes_nothing() -> None:
    patched = interpreter.InterpreterBuilder.create_dot
    interpreter.patch()
    assert interpreter.InterpreterBuilder.create_dot is patched
