"""Products in 8-bit integers: rows quantised by their largest element, int8 tensor cores, exact sums in int32, scales at the end.

Source: the per-token, per-channel scheme of LLM.int8() (arXiv 2208.07339) without its outliers, as in SmoothQuant (arXiv 2211.10438).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mqlab_kernels.capability import capability
from mqlab_kernels.int8_range import LIMIT, SMALLEST_SCALE
from mqlab_kernels.kernel import Case, Config, Kernel

LONGEST_SUM = (2**31 - 1) // LIMIT**2
"""Columns up to which no sum of products can pass an int32."""

_LIMIT, _SMALLEST_SCALE = tl.constexpr(LIMIT), tl.constexpr(SMALLEST_SCALE)
_ROUNDING = tl.constexpr(1.5 * 2.0**23)
_EXPONENT = tl.constexpr(0x7FFFFFFF)
_ABREAST = tl.constexpr(8)


@triton.jit
def quantise_rows_kernel(x, out, scales, size, x_stride, out_stride, PADDED: tl.constexpr):
    """One row. PADDED, its size to a power of two, is a constant of the case."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    inside = at < size
    value = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    # Magnitudes order as their bits do, and so a NaN is above all: it reaches the scale, where a maximum of floats would lose it.
    top = tl.max(value.to(tl.int32, bitcast=True) & _EXPONENT, 0).to(tl.float32, bitcast=True)
    scale = top / _LIMIT
    scale = tl.where(scale < _SMALLEST_SCALE, _SMALLEST_SCALE, scale)
    # Where floats are 1 apart an addition rounds to the nearest integer, ties to even, and leaves it in the lowest bits.
    rounded = (value * (1.0 / scale) + _ROUNDING).to(tl.int32, bitcast=True).to(tl.int8)
    tl.store(out + row * out_stride + at, rounded, mask=inside)
    tl.store(scales + row, scale)


@triton.jit(do_not_specialize=["rows"])
def int8_gemm_kernel(
    a, b, a_scales, b_scales, bias, out, rows, columns, depth, a_stride, b_stride, out_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BIASED: tl.constexpr, WHOLE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """One tile of ROWS x COLUMNS outputs.

    Constants of the case: the tile; whether there is a bias; whether DEPTH divides the depth. Constant of speed: DEPTH of a loop's turn.
    """
    # Eight tiles of rows go abreast through the columns: what runs at one time shares the weights that it reads in the L2 cache.
    tiles = tl.cdiv(rows, ROWS)
    band = tl.program_id(0) // (_ABREAST * tl.cdiv(columns, COLUMNS)) * _ABREAST
    abreast = tl.minimum(tiles - band, _ABREAST)
    place = tl.program_id(0) - band * tl.cdiv(columns, COLUMNS)
    row = (band + place % abreast) * ROWS + tl.arange(0, ROWS)
    column = place // abreast * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    row_inside, column_inside = row < rows, column < columns

    left = a + row.to(tl.int64)[:, None] * a_stride + inner[None, :]
    right = b + column.to(tl.int64)[None, :] * b_stride + inner[:, None]
    total = tl.zeros([ROWS, COLUMNS], tl.int32)
    for start in tl.range(0, depth, DEPTH):
        left_mask, right_mask = row_inside[:, None], column_inside[None, :]
        if not WHOLE:
            left_mask = left_mask & (inner < depth - start)[None, :]
            right_mask = right_mask & (inner < depth - start)[:, None]
        total = tl.dot(tl.load(left, mask=left_mask, other=0), tl.load(right, mask=right_mask, other=0), total, out_dtype=tl.int32)
        left += DEPTH
        right += DEPTH

    row_scales = tl.load(a_scales + row, mask=row_inside, other=0.0)
    column_scales = tl.load(b_scales + column, mask=column_inside, other=0.0)
    result = total.to(tl.float32) * row_scales[:, None] * column_scales[None, :]
    if BIASED:
        result += tl.load(bias + column, mask=column_inside, other=0.0).to(tl.float32)[None, :]
    places = out + row.to(tl.int64)[:, None] * out_stride + column[None, :]
    tl.store(places, result.to(out.dtype.element_ty), mask=row_inside[:, None] & column_inside[None, :])


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in 8 bits: x is about integers * scale, each off by half a scale at most.

    Args:
        x: [M, K], bfloat16, float16 or float32.

    Returns:
        The integers [M, K] int8 within -127 to 127, and the scales [M] float32: the row's largest magnitude / 127. A row of zeros has
        integers of 0; one with a NaN or an infinity a scale that is none or infinite, which no product hides.

    Raises:
        ValueError: rows that are not contiguous.
    """
    if x.stride(-1) != 1:
        raise ValueError("quantise_rows takes rows whose elements are side by side; call contiguous() on what is transposed")
    rows, size = x.shape
    out = torch.empty(rows, size, dtype=torch.int8, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        constants = {"PADDED": triton.next_power_of_2(size)}
        config = choose_quantise(constants, capability(x.device))
        quantise_rows_kernel[(rows,)](x, out, scales, size, x.stride(0), out.stride(0), **constants, **config.options)
    return out, scales


def int8_gemm(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype,
    out: Tensor | None = None,
) -> Tensor:
    """(a b^T) * a_scales * b_scales + bias, the sum over K exact.

    Args:
        a: [M, K] int8, within -127 to 127; b: [N, K] int8 likewise, the weight as a linear layer has it.
        a_scales: [M] float32; b_scales: [N] float32.
        bias: [N].
        dtype: of the result.
        out: [M, N], to write to.

    Returns:
        [M, N] in ``dtype``, or ``out``.

    Raises:
        ValueError: rows that are not contiguous, or so long that a sum could pass an int32.
    """
    (rows, depth), (columns, _) = a.shape, b.shape
    out = torch.empty(rows, columns, dtype=dtype, device=a.device) if out is None else out
    _check(a, b, a_scales, b_scales, out)
    if not out.numel():
        return out
    tile_rows, tile_columns = tile(rows, columns)
    constants = {"ROWS": tile_rows, "COLUMNS": tile_columns, "BIASED": bias is not None}
    config = choose(constants, capability(a.device))
    constants["WHOLE"] = depth % config.constants["DEPTH"] == 0
    grid = (triton.cdiv(rows, tile_rows) * triton.cdiv(columns, tile_columns),)
    int8_gemm_kernel[grid](
        a, b, a_scales, b_scales, b_scales if bias is None else bias, out,
        rows, columns, depth, a.stride(0), b.stride(0), out.stride(0), **constants, **config.options,
    )  # fmt: skip
    return out


def _check(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, out: Tensor) -> None:
    if a.shape[1] != b.shape[1] or a.shape[1] > LONGEST_SUM:
        raise ValueError(
            f"a has rows of {a.shape[1]}, b of {b.shape[1]}: these must be equal and at most {LONGEST_SUM:,}, or sums pass int32"
        )
    if any(tensor.stride(-1) != 1 for tensor in (a, b, a_scales, b_scales, out)):
        raise ValueError("int8_gemm takes tensors whose last dimension is contiguous: a [M, K], and b [N, K], not its transpose")


def tile(rows: int, columns: int) -> tuple[int, int]:
    """The case's tile: the widest of which there are enough to keep every processor of a large GPU busy, for a few rows reading weights is
    all the work; of many rows the largest, which reads least."""
    tall = next(most for most in (16, 64, 128) if rows <= most or most == 128)
    wide = {16: (128, 64, 32, 16), 64: (128, 64, 32), 128: (256, 128, 64, 32)}[tall]
    across = triton.cdiv(rows, tall)
    return tall, next((width for width in wide if across * triton.cdiv(columns, width) >= PROCESSORS), wide[-1])


def quantise_rows_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same in float64."""
    values = x.double()
    scales = (values.abs().amax(-1) / LIMIT).clamp(min=SMALLEST_SCALE)
    return (values / scales[:, None]).round().to(torch.int8), scales.float()


def int8_gemm_reference(
    a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None = None, *, dtype: torch.dtype = torch.float64
) -> Tensor:
    """The same in float64, in which the sums are exact too."""
    result = (a.double() @ b.double().T) * a_scales.double()[:, None] * b_scales.double()
    return (result if bias is None else result + bias.double()).to(dtype)


PROCESSORS = 128
"""Tiles that fill a large GPU: an A100 has 108 processors, an H100 132, a B200 148."""

SWEEP_QUANTISE = tuple(Config(num_warps=warps, num_stages=1) for warps in (4, 8, 16, 32))

_CONFIGS = {
    (depth, warps, stages): Config(constants={"DEPTH": depth}, num_warps=warps, num_stages=stages)
    for depth, warps, stages in (
        (64, 8, 3), (64, 8, 4), (128, 4, 3), (128, 4, 4), (128, 4, 6), (128, 8, 3), (128, 8, 4),
        (256, 4, 3), (256, 4, 4), (256, 4, 6), (256, 8, 3), (512, 4, 4), (512, 4, 6),
    )
}  # fmt: skip

SWEEP = tuple(_CONFIGS.values())


def choose_quantise(constants: Mapping[str, Any], capability: int) -> Config:
    """The shipped config: 8 elements a thread, which are 128 bits of bfloat16, and more where a row has more than 8,192."""
    warps = min(max(constants["PADDED"] // 256, 4), 32)
    return next(config for config in SWEEP_QUANTISE if config.num_warps == warps)


def choose(constants: Mapping[str, Any], capability: int) -> Config:
    """The shipped config: of flat tiles 32 KiB and more of weights on their way at any time, of large ones two programs to a processor."""
    shape = constants["ROWS"], constants["COLUMNS"]
    if shape == (128, 256) and capability != 90:
        # Without wgmma the operands pass through registers, of which the sums leave few.
        return _CONFIGS[64, 8, 4]
    return _CONFIGS[_CHOICE[shape]]


_CHOICE = {
    (16, 32): (256, 4, 6), (16, 16): (512, 4, 6), (16, 64): (256, 4, 4), (16, 128): (128, 4, 4),
    (64, 32): (256, 4, 4), (64, 64): (128, 4, 4), (64, 128): (128, 4, 4),
    (128, 32): (128, 4, 4), (128, 64): (128, 4, 4), (128, 128): (128, 8, 3), (128, 256): (128, 8, 4),
}  # fmt: skip
"""Depth, warps and stages by the tile."""


def _quantise_case(size: int, dtype: str) -> Case:
    sizes = ("size", "x_stride", "out_stride")
    return Case(
        name=f"rows of up to {size}, {dtype[1:]}",
        types={"x": dtype, "out": "*i8", "scales": "*fp32"} | dict.fromkeys(sizes, "i32"),
        constants={"PADDED": size},
        aligned=("x", "out", "scales", *sizes),
    )


def _case(rows: int, columns: int, dtype: str = "*bf16", bias: bool = False, whole: bool = True) -> Case:
    sizes = ("rows", "columns", "depth", "a_stride", "b_stride", "out_stride")
    pointers = {"a": "*i8", "b": "*i8", "a_scales": "*fp32", "b_scales": "*fp32", "bias": dtype if bias else "*fp32", "out": dtype}
    return Case(
        name=f"tile {rows} x {columns}, {dtype[1:]}" + ", bias" * bias + ", odd depth" * (not whole),
        types=pointers | dict.fromkeys(sizes, "i32"),
        constants={"ROWS": rows, "COLUMNS": columns, "BIASED": bias, "WHOLE": whole},
        aligned=(*pointers, *sizes[1:]),
    )


CASES_QUANTISE = tuple(_quantise_case(size, "*bf16") for size in (4096, 1024, 2048, 8192, 16384, 32768)) + tuple(
    _quantise_case(4096, dtype) for dtype in ("*fp16", "*fp32")
)

CASES = (
    *(_case(rows, columns) for rows, columns in _CHOICE),
    *(_case(rows, columns, dtype) for rows, columns in ((16, 32), (128, 128)) for dtype in ("*fp16", "*fp32")),
    *(_case(rows, columns, bias=True) for rows, columns in ((16, 32), (128, 128))),
    *(_case(rows, columns, whole=False) for rows, columns in ((16, 16), (64, 32), (128, 256))),
)

KERNELS = (
    Kernel(name="quantise_rows", function=quantise_rows_kernel, cases=CASES_QUANTISE, sweep=SWEEP_QUANTISE, choose=choose_quantise),
    Kernel(name="int8_gemm", function=int8_gemm_kernel, cases=CASES, sweep=SWEEP, choose=choose),
)
