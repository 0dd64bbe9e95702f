"""The gate of an MLP: activation(first half) * second half, of the fused projection's rows. Source: GLU variants, arXiv 2002.05202."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from mqlab_kernels.capability import capability
from mqlab_kernels.kernel import Case, Config, Kernel

ACTIVATIONS = ("silu", "gelu", "tanh_gelu", "relu")
"""By erf the second, by tanh the third."""

_SQRT_HALF = tl.constexpr(0.7071067811865476)
_SQRT_8_OVER_PI = tl.constexpr(1.5957691216057308)


@triton.jit
def _sigmoid(x):
    """Below -80 it stays at 1.8e-35: exp does not overflow."""
    return 1.0 / (1.0 + tl.exp(tl.minimum(-x, 80.0)))


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    """In float32. tanh-gelu's 0.5 * (1 + tanh(y)) is sigmoid(2 * y)."""
    if ACTIVATION == "silu":
        return x * _sigmoid(x)
    if ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * _SQRT_HALF))
    if ACTIVATION == "tanh_gelu":
        return x * _sigmoid((x + 0.044715 * x * x * x) * _SQRT_8_OVER_PI)
    return tl.maximum(x, 0.0)


@triton.jit
def gated_kernel(raised, out, size, raised_stride, out_stride, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK outputs of one row. ACTIVATION is a constant of the case, BLOCK one of speed."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    places = raised + row * raised_stride + at
    gate = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(places + size, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + at, (_activated(gate, ACTIVATION) * up).to(out.dtype.element_ty), mask=inside)


def gated(raised: Tensor, activation: str, out: Tensor | None = None) -> Tensor:
    """activation(first half of a row) * second half.

    Args:
        raised: [M, 2 * I].
        activation: one of ACTIVATIONS, computed in float32.
        out: [M, I], to write to; may be the first half of ``raised``.

    Returns:
        [M, I] in raised's dtype, or ``out``.

    Raises:
        ValueError: no such activation, an odd number of columns, or rows that are not contiguous.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} is none of {', '.join(ACTIVATIONS)}")
    rows, columns = raised.shape
    size, odd = divmod(columns, 2)
    out = raised.new_empty(rows, size) if out is None else out
    if odd or raised.stride(-1) != 1 or out.stride(-1) != 1:
        raise ValueError(
            f"raised has {columns} columns, strides {raised.stride()}: it must be two halves, the elements of a row side by side"
        )
    if not out.numel():
        return out
    constants = {"ACTIVATION": activation}
    config = choose(constants, capability(raised.device))
    grid = (rows, triton.cdiv(size, config.constants["BLOCK"]))
    gated_kernel[grid](raised, out, size, raised.stride(0), out.stride(0), **constants, **config.options)
    return out


def gated_reference(raised: Tensor, activation: str) -> Tensor:
    """The same in float64."""
    gate, up = raised.double().chunk(2, -1)
    functions = {"silu": F.silu, "gelu": F.gelu, "tanh_gelu": partial(F.gelu, approximate="tanh"), "relu": F.relu}
    return functions[activation](gate) * up


SWEEP = tuple(
    Config(constants={"BLOCK": block}, num_warps=warps, num_stages=1)
    for block, warps in ((256, 1), (512, 2), (512, 4), (1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8))
)


def choose(constants: Mapping[str, Any], capability: int) -> Config:
    """The shipped config: 8 elements a thread, which are 128 bits of bfloat16."""
    return SWEEP[3]


def _case(activation: str, dtype: str) -> Case:
    sizes = ("size", "raised_stride", "out_stride")
    return Case(
        name=f"{activation}, {dtype[1:]}",
        types={"raised": dtype, "out": dtype} | dict.fromkeys(sizes, "i32"),
        constants={"ACTIVATION": activation},
        aligned=("raised", "out", *sizes),
    )


CASES = (
    *(_case(activation, "*bf16") for activation in ACTIVATIONS),
    *(_case("silu", dtype) for dtype in ("*fp16", "*fp32")),
)

KERNELS = (Kernel(name="gated", function=gated_kernel, cases=CASES, sweep=SWEEP, choose=choose),)
