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


@triton.jit
def cast_kernel(values, out, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(out + at, tl.load(values + at).to(out.dtype.element_ty))


@pytest.mark.parametrize("of", [torch.float32, torch.float16, torch.float64, torch.int32])
def test_what_becomes_bfloat16_is_rounded_to_the_nearest(of: torch.dtype) -> None:
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 255.5, 257.0, 2.0**-14 * (1 + 2**-8), 0.0, 65504.0])
    drawn = torch.randn(1016, generator=torch.Generator().manual_seed(0)) * 300
    values = torch.cat([ties, drawn]).to(of)
    out = torch.empty(1024, dtype=torch.bfloat16)
    cast_kernel[(1,)](values, out, COUNT=1024)
    assert torch.equal(out, values.bfloat16())


def test_bounds_of_bfloat16_stay_what_they_are() -> None:
    bounds = [float("inf"), -float("inf"), float("nan"), 3.4e38, torch.finfo(torch.bfloat16).max, -0.0, 1e-45, 2.0**-133]
    values, out = torch.tensor(bounds), torch.empty(8, dtype=torch.bfloat16)
    values.view(torch.int32)[2] = -1  # all bits: one more, and it were 0
    cast_kernel[(1,)](values, out, COUNT=8)
    torch.testing.assert_close(out, values.bfloat16(), rtol=0, atol=0, equal_nan=True)
    assert out.signbit().tolist()[5]


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32])
def test_what_was_bfloat16_is_exact(to: torch.dtype) -> None:
    values = (torch.randn(64, generator=torch.Generator().manual_seed(0)) * 300).bfloat16()
    out = torch.empty(64, dtype=to)
    cast_kernel[(1,)](values, out, COUNT=64)
    assert torch.equal(out, values.to(to))


def test_patching_again_changes_nothing() -> None:
    builder = interpreter.InterpreterBuilder
    patched = builder.create_dot, builder.cast_impl
    interpreter.patch()
    assert (builder.create_dot, builder.cast_impl) == patched
