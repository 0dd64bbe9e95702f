"""Uses of the kernels that go over their data once: norms, rotations, activations, drawing, and what is between two steps."""

from __future__ import annotations

import torch
from torch import Tensor

from mqlab.model.measure.attention_uses import BLOCK, slots_of
from mqlab.model.measure.use import Use, result

_POSITIONS = 8192
_BASE = 500_000.0


def add_rms_norm(device: torch.device, dtype: torch.dtype, *, tokens: int, width: int) -> Use:
    """The norm of hidden states and their residual, both of which the kernel reads and writes."""
    from mqlab_kernels.add_rms_norm import add_rms_norm, add_rms_norm_reference

    x, residual = torch.randn(2, tokens, width, device=device).to(dtype)
    return Use(
        call=add_rms_norm,
        reference=add_rms_norm_reference,
        args=(x, residual, torch.rand(width, device=device) + 0.5, 1e-5),
        outcome=lambda got, args: (got, args[1]),
        moved=4 * x.nbytes,
        flops=0,
    )


def rotary(device: torch.device, dtype: torch.dtype, *, tokens: int, heads: int, size: int) -> Use:
    """Rotation of queries and keys in place."""
    from mqlab_kernels.rotary import rotary, rotary_reference

    def rotated(x: Tensor, *others: Tensor) -> Tensor:
        rotary(x, *others)
        return x

    x = torch.randn(tokens, heads, size, device=device).to(dtype)
    return Use(
        call=rotated,
        reference=rotary_reference,
        args=(x, *_angles(size, device), torch.randint(_POSITIONS, (tokens,), device=device)),
        outcome=result,
        moved=2 * x.nbytes,
        flops=0,
    )


def gated(device: torch.device, dtype: torch.dtype, *, tokens: int, width: int, activation: str = "silu") -> Use:
    """The gate of an MLP, of ``width`` hidden units."""
    from mqlab_kernels.gated import gated, gated_reference

    raised = torch.randn(tokens, 2 * width, device=device).to(dtype)
    return Use(
        call=gated,
        reference=gated_reference,
        args=(raised, activation),
        outcome=result,
        moved=3 * tokens * width * dtype.itemsize,
        flops=0,
    )


def qkv_rope_cache(
    device: torch.device,
    dtype: torch.dtype,
    *,
    tokens: int,
    heads: int,
    kv_heads: int,
    size: int,
    normed: bool = False,
    spare_blocks: int = 0,
) -> Use:
    """Rotation of queries and keys, and keys and values into the cache, in one.

    Args:
        spare_blocks: of the cache, in front of those in which something is stored.
    """
    from mqlab_kernels.qkv_rope_cache import qkv_rope_cache, qkv_rope_cache_reference

    blocks = spare_blocks - (-tokens // BLOCK) + 1
    keys, values = torch.zeros(2, blocks, kv_heads, BLOCK, size, dtype=dtype, device=device)
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * size, device=device).to(dtype)
    positions = torch.randint(_POSITIONS, (tokens,), device=device)
    norms = {"q_norm": torch.rand(size, device=device) + 0.5, "k_norm": torch.rand(size, device=device) + 0.5, "eps": 1e-6}
    return Use(
        call=qkv_rope_cache,
        reference=qkv_rope_cache_reference,
        args=(qkv, *_angles(size, device), positions, slots_of(tokens, blocks, device), keys, values),
        kwargs={"heads": heads, **(norms if normed else {})},
        outcome=lambda got, args: (got, args[5][spare_blocks:], args[6][spare_blocks:]),
        moved=2 * qkv.nbytes,
        flops=0,
    )


def sample(device: torch.device, dtype: torch.dtype, *, rows: int, vocab: int) -> Use:
    """Draws of all kinds: greedy ones, and with top-k, top-p and min-p."""
    from mqlab_kernels.sample import sample
    from mqlab_kernels.sample_reference import sample_reference

    number = torch.arange(rows, device=device)
    return Use(
        call=sample,
        reference=sample_reference,
        args=(
            (3.5 * torch.randn(rows, vocab, device=device)).to(dtype),
            torch.tensor([0.0, 1.0, 0.8, 1.2], device=device)[number % 4],
            torch.tensor([0, 0, 50, 0, 1000], dtype=torch.int32, device=device)[number % 5],
            torch.tensor([1.0, 0.9, 0.95], device=device)[number % 3],
            torch.tensor([0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.01], device=device)[number % 7],
            torch.randint(1 << 62, (rows,), device=device),
            number,
        ),
        outcome=result,
        moved=rows * vocab * dtype.itemsize,
        flops=0,
        drawn=True,
    )


def advance(device: torch.device, dtype: torch.dtype, *, rows: int, context: int) -> Use:
    """From drawn tokens to the inputs of the next round; every eighth row is padded."""
    from mqlab_kernels.advance import advance, advance_reference

    del dtype
    tables = torch.randperm(rows * (context // BLOCK + 2), device=device).view(rows, -1).to(torch.int32)
    positions = torch.randint(context, (rows,), device=device)
    slots = tables.gather(1, (positions // BLOCK)[:, None]).squeeze(1).long() * BLOCK + positions % BLOCK
    slots[::8] = -1
    sampled = torch.randint(-1, 1000, (rows,), device=device)
    state = (sampled.clone(), positions, slots, (positions + 1).to(torch.int32), torch.arange(rows, device=device))
    return Use(
        call=advance,
        reference=advance_reference,
        args=(sampled, *state, tables, BLOCK),
        outcome=lambda _, args: args[1:6],
        moved=2 * sum(one.nbytes for one in state),
        flops=0,
    )


def quantise_rows(device: torch.device, dtype: torch.dtype, *, tokens: int, width: int) -> Use:
    """Activations into int8."""
    from mqlab_kernels.int8_gemm import quantise_rows, quantise_rows_reference

    x = torch.randn(tokens, width, device=device).to(dtype)
    return Use(
        call=quantise_rows,
        reference=quantise_rows_reference,
        args=(x,),
        outcome=result,
        moved=x.nbytes + x.numel() + 4 * tokens,
        flops=0,
    )


def int8_gemm(device: torch.device, dtype: torch.dtype, *, tokens: int, width: int, out_width: int) -> Use:
    """A product of int8 activations and weights, scaled so that float16 holds it."""
    from mqlab_kernels.int8_gemm import int8_gemm, int8_gemm_reference

    a = torch.randint(-127, 128, (tokens, width), dtype=torch.int8, device=device)
    b = torch.randint(-127, 128, (out_width, width), dtype=torch.int8, device=device)
    return Use(
        call=int8_gemm,
        reference=int8_gemm_reference,
        args=(a, b, torch.rand(tokens, device=device) / 127, torch.rand(out_width, device=device) / (127 * width**0.5)),
        kwargs={"dtype": dtype},
        outcome=result,
        moved=a.numel() + b.numel() + tokens * out_width * dtype.itemsize,
        flops=2 * tokens * width * out_width,
    )


def _angles(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, size / 2] float32."""
    rates = _BASE ** -(torch.arange(0, size, 2, device=device) / size)
    angles = torch.arange(_POSITIONS, device=device)[:, None] * rates
    return angles.cos(), angles.sin()
