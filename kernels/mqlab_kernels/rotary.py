"""Rotary positions, in place. Source: RoFormer, arXiv 2104.09864, in the order of Hugging Face's Llama and GPT-NeoX: i with i + R/2."""

# Triton's functions give several values, of which its types know nothing.
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mqlab_kernels.capability import capability
from mqlab_kernels.kernel import Case, Config, Kernel


@triton.jit
def rotated(first, second, cosines, sines):
    """The two halves turned by their angles."""
    return first * cosines - second * sines, second * cosines + first * sines


@triton.jit(do_not_specialize=["heads"], do_not_specialize_on_alignment=["positions"])
def rotary_kernel(
    x, cos, sin, positions, heads, token_stride, head_stride,
    HALF: tl.constexpr, PADDED: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """HEADS heads of one token. Constants of the case: HALF of the rotated dimensions, and that PADDED to a power of two."""
    token = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dims = tl.arange(0, PADDED)
    angle = tl.load(positions + token) * HALF + dims
    cosines = tl.load(cos + angle, mask=dims < HALF, other=0.0)[None, :]
    sines = tl.load(sin + angle, mask=dims < HALF, other=0.0)[None, :]
    inside = (rows < heads)[:, None] & (dims < HALF)[None, :]
    places = x + token * token_stride + rows[:, None] * head_stride + dims[None, :]
    first = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(places + HALF, mask=inside, other=0.0).to(tl.float32)
    first, second = rotated(first, second, cosines, sines)
    tl.store(places, first.to(x.dtype.element_ty), mask=inside)
    tl.store(places + HALF, second.to(x.dtype.element_ty), mask=inside)


def rotary(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    """Turn dimensions i and i + R/2 of every head by the angle of their token's position, in place; dimensions from R on stay.

    Args:
        x: [T, heads, D], heads contiguous in D.
        cos: [positions, R/2] float32, contiguous, R <= D; ``sin`` likewise.
        positions: [T] int64.

    Raises:
        ValueError: tables or strides that do not fit.
    """
    check_tables(cos, sin, x.shape[-1])
    if x.stride(-1) != 1:
        raise ValueError(f"x has strides {x.stride()}: rotary takes heads whose elements are side by side")
    (tokens, heads, _), half = x.shape, cos.shape[1]
    if not tokens or not half:
        return
    constants: dict[str, Any] = {"HALF": half, "PADDED": triton.next_power_of_2(half)}
    config = choose(constants, capability(x.device))
    grid = (tokens, triton.cdiv(heads, config.constants["HEADS"]))
    rotary_kernel[grid](x, cos, sin, positions, heads, token_stride=x.stride(0), head_stride=x.stride(1), **constants, **config.options)


def check_tables(cos: Tensor, sin: Tensor, size: int) -> None:
    """Raise ValueError unless these are tables of angles for heads of that size."""
    if cos.shape != sin.shape or any(not table.is_contiguous() or table.dtype != torch.float32 for table in (cos, sin)):
        told = ", ".join(f"{tuple(table.shape)} {table.dtype} of strides {table.stride()}" for table in (cos, sin))
        raise ValueError(f"cos and sin are {told}: they must be contiguous float32 of one shape")
    if 2 * cos.shape[1] > size:
        raise ValueError(f"tables of {cos.shape[1]} angles turn {2 * cos.shape[1]} dimensions, and a head has {size}")


def rotary_reference(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    """What ``rotary`` makes of ``x``, in float64: [T, heads, D]. ``x`` stays."""
    half = cos.shape[1]
    first, second, rest = x.double().split([half, half, x.shape[-1] - 2 * half], -1)
    c, s = (table[positions].double()[:, None] for table in (cos, sin))
    return torch.cat([first * c - second * s, second * c + first * s, rest], -1)


SWEEP = tuple(
    Config(constants={"HEADS": heads}, num_warps=warps)
    for heads, warps in ((4, 1), (8, 1), (8, 2), (16, 2), (16, 4), (32, 4), (32, 8))
)  # fmt: skip


def choose(constants: Mapping[str, Any], capability: int) -> Config:
    """The shipped config: of heads of 128, 8 elements a thread and half, which are 128 bits of bfloat16."""
    return SWEEP[4]


def _case(dtype: str, size: int, half: int) -> Case:
    strides = dict.fromkeys(("token_stride", "head_stride"), "i32")
    tensors = {"x": f"*{dtype}", "cos": "*fp32", "sin": "*fp32"}
    return Case(
        name=f"head {size}, {2 * half} of it rotated, {dtype}",
        types={**tensors, **strides, "positions": "*i64", "heads": "i32"},
        constants={"HALF": half, "PADDED": triton.next_power_of_2(half)},
        aligned=(*tensors, *strides),
    )


CASES = (
    *(_case("bf16", size, size // 2) for size in (32, 64, 80, 96, 112, 128, 192, 256)),
    _case("bf16", 80, 16),
    _case("bf16", 96, 12),
    _case("fp16", 128, 64),
    _case("fp32", 128, 64),
)

KERNELS = (Kernel(name="rotary", function=rotary_kernel, cases=CASES, sweep=SWEEP, choose=choose),)
