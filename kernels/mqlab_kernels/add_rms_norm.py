"""The residual's sum and its RMS norm in one pass over memory.

A row is read once into the registers of one program, so its sum and its norm cost what reading and writing it costs. Source: RMSNorm, arXiv
1910.07467.
"""

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
def add_rms_norm_kernel(
    x, residual, weight, out, x_stride, residual_stride, out_stride, eps,
    SIZE: tl.constexpr, PADDED: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """One row. Constants of the case: SIZE of a row, and that PADDED to a power of two; whether a residual is ADDED."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    inside = at < SIZE
    total = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        places = residual + row * residual_stride + at
        added = (total + tl.load(places, mask=inside, other=0.0).to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(places, added, mask=inside)
        # The norm is that of the sum as it is stored: what a norm by itself would read.
        total = added.to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total, 0) / SIZE + eps)
    normed = total * scale * tl.load(weight + at, mask=inside, other=0.0)
    tl.store(out + row * out_stride + at, normed.to(out.dtype.element_ty), mask=inside)


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """Add ``x`` to the residual stream, and give the stream's norm: sum / sqrt(mean(sum^2) + eps) * weight over each row.

    Args:
        x: [M, N].
        residual: [M, N] of any floating dtype, to which ``x`` is added in place; None for the norm of ``x`` alone.
        weight: [N] float32; Gemma's 1 + weight is the caller's.
        eps: above 0.
        out: [M, N], to write to; may be ``x``.

    Returns:
        [M, N] in x's dtype, or ``out``.

    Raises:
        ValueError: rows that are not contiguous.
    """
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    added = x if residual is None else residual
    if any(tensor.stride(-1) != 1 for tensor in (x, added, weight, out)):
        raise ValueError("add_rms_norm takes rows whose elements are side by side; call contiguous() on what is transposed")
    rows, size = x.shape
    if not rows:
        return out
    constants = {"SIZE": size, "PADDED": triton.next_power_of_2(size), "ADDED": residual is not None}
    config = choose(constants, capability(x.device))
    add_rms_norm_kernel[(rows,)](
        x, added, weight, out, x.stride(0), added.stride(0), out.stride(0), eps, **constants, **config.options
    )  # fmt: skip
    return out


def add_rms_norm_reference(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """The same in float64; the residual is rounded to its dtype."""
    total = x.double()
    if residual is not None:
        residual.copy_(total + residual.double())
        total = residual.double()
    return total / (total.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


SWEEP = tuple(Config(num_warps=warps, num_stages=1) for warps in (1, 2, 4, 8, 16, 32))


def choose(constants: Mapping[str, Any], capability: int) -> Config:
    """The shipped config: 8 elements a thread, which are 128 bits of bfloat16, and more where a row has more than 8,192."""
    warps = min(max(constants["PADDED"] // 256, 1), 32)
    return next(config for config in SWEEP if config.num_warps == warps)


def _case(name: str, size: int, dtype: str, residual: str | None) -> Case:
    types = {"x": dtype, "residual": residual or dtype, "weight": "*fp32", "out": dtype}
    strides = ("x_stride", "residual_stride", "out_stride")
    return Case(
        name=f"{name}, {dtype[1:]}, " + (f"residual {residual[1:]}" if residual else "no residual"),
        types=types | dict.fromkeys(strides, "i32") | {"eps": "fp32"},
        constants={"SIZE": size, "PADDED": triton.next_power_of_2(size), "ADDED": residual is not None},
        aligned=("x", "residual", "weight", "out", *strides),
    )


_SIZES = {"Llama 8B": 4096, "SmolLM2 135M": 576, "Llama 1B": 2048, "Qwen 14B": 5120, "Llama 70B": 8192, "Llama 405B": 16384}

CASES = (
    *(_case(name, size, "*bf16", residual) for name, size in _SIZES.items() for residual in ("*bf16", None)),
    *(_case("Llama 8B", 4096, dtype, residual) for dtype, residual in (("*fp16", "*fp16"), ("*fp32", "*fp32"), ("*bf16", "*fp32"))),
)

KERNELS = (Kernel(name="add_rms_norm", function=add_rms_norm_kernel, cases=CASES, sweep=SWEEP, choose=choose),)
