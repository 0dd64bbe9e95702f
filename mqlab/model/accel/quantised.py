"""Linear layers in 8-bit integers, weights and activations: ``quantization="w8a8"``."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from mqlab_kernels.int8_range import LIMIT, SMALLEST_SCALE
from torch import Tensor

from mqlab.errors import ConfigError
from mqlab.model.layers import Product


def quantised_product(weight: Tensor, bias: Tensor | None = None, *, backend: str = "torch") -> Product:
    """y = x W^T + b in 8-bit integers with exact sums.

    The weight is quantised here, a scale to each output row, and is not kept; activations are quantised at each call, a scale to each row.
    Source: SmoothQuant (arXiv 2211.10438) without its smoothing.

    Args:
        weight: [N, K], bfloat16, float16 or float32, on the device where calls will be.
        bias: [N].
        backend: of EngineConfig.attention_backend. Triton's kernels compute where it is ``triton``, and on every GPU, where torch has no
            such product of a few rows; torch computes elsewhere.

    Returns:
        [M, K] of any floating dtype -> [M, N] of the same.

    Raises:
        ConfigError: Triton is needed and not installed.
    """
    if backend != "triton" and not weight.is_cuda:
        return _Plain(weight, bias)
    if find_spec("triton") is None:
        raise ConfigError("--quantization=w8a8 on a GPU needs triton, which is not installed; pip install 'mqlab[gpu]', or leave it out")
    return _Fused(weight, bias)


class _Fused:
    """By Triton's kernels, imported here alone: Triton is not installed everywhere."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        from mqlab_kernels.int8_gemm import int8_gemm, quantise_rows

        self._quantise, self._multiply = quantise_rows, int8_gemm
        self._weight, self._scales = quantise_rows(weight.contiguous())
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        whole, scales = self._quantise(x)
        return self._multiply(whole, self._weight, scales, self._scales, self._bias, dtype=x.dtype)


class _Plain:
    """By torch's own operations, on a CPU."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._scales = _quantise(weight)
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        whole, scales = _quantise(x)
        y = _multiply(whole, self._weight).float().mul_(scales[:, None]).mul_(self._scales)
        return (y if self._bias is None else y.add_(self._bias)).to(x.dtype)


def _quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """[M, K] -> integers [M, K] int8 within -LIMIT to LIMIT, and the scale of each row [M] float32."""
    values = x.float()
    scales = (values.abs().amax(-1) / LIMIT).clamp_(min=SMALLEST_SCALE)
    return (values / scales[:, None]).round_().to(torch.int8), scales


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """a b^T with exact sums: [M, K] int8, [N, K] int8 -> [M, N], int32 or float64."""
    if sums_are_exact():
        return torch.ops.aten._int_mm(a, b.T)
    return a.double() @ b.double().T


@cache
def sums_are_exact() -> bool:
    """Whether ``torch._int_mm`` is right on this CPU: without VNNI it may add pairs of products in 16 bits, where large ones saturate."""
    largest = torch.full((4, 64), LIMIT, dtype=torch.int8)
    try:
        return bool((torch.ops.aten._int_mm(largest, -largest.T) == -64 * LIMIT**2).all())
    except RuntimeError:
        return False
