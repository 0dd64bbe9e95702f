"""Rows more than 2**31 elements from the first, as those of large batches are: their offsets are int64 in every kernel.

Only the rows themselves are ever touched, so they take addresses and no memory.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from mqlab_kernels.add_rms_norm import add_rms_norm
from mqlab_kernels.advance import advance
from mqlab_kernels.gated import gated
from mqlab_kernels.int8_gemm import int8_gemm, quantise_rows
from mqlab_kernels.paged_decode import paged_decode
from mqlab_kernels.prefill_attention import prefill_attention
from mqlab_kernels.qkv_rope_cache import qkv_rope_cache
from mqlab_kernels.reshape_cache import reshape_and_cache
from mqlab_kernels.rotary import rotary
from mqlab_kernels.sample import sample
from torch import Tensor
from triton.runtime.interpreter import GridExecutor

APART = 2**30 + 16
"""Elements from a row to the next: three rows pass 2**31."""
ROWS = 3

Placing = Callable[[Tensor], Tensor]


def near(rows: Tensor) -> Tensor:
    return rows.clone()


def far(rows: Tensor) -> Tensor:
    """The same rows, each APART from the next."""
    reach = sum((size - 1) * stride for size, stride in zip(rows.shape[1:], rows.stride()[1:], strict=True)) + 1
    placed = torch.empty((ROWS - 1) * APART + reach, dtype=rows.dtype).as_strided(rows.shape, (APART, *rows.stride()[1:]))
    return placed.copy_(rows)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()


def integers(count: int, first: int = 0) -> Tensor:
    return torch.arange(first, first + count, dtype=torch.int32)


def sums_and_norms(place: Placing) -> list[Tensor]:
    out, residual = place(drawn(ROWS, 40)), place(drawn(ROWS, 40, seed=1))
    return [add_rms_norm(place(drawn(ROWS, 40)), residual, torch.ones(40), 1e-5, out=out), residual]


def rotations(place: Placing) -> list[Tensor]:
    heads, turns = place(drawn(ROWS, 2, 32)), torch.ones(4, 16)
    rotary(heads, turns * 0.6, turns * 0.8, torch.arange(ROWS))
    return [heads]


def gates(place: Placing) -> list[Tensor]:
    return [gated(place(drawn(ROWS, 40)), "silu", out=place(drawn(ROWS, 20)))]


def draws(place: Placing) -> list[Tensor]:
    ones, places = torch.ones(ROWS), torch.arange(ROWS)
    return [sample(place(drawn(ROWS, 100)), ones, 20 * places, ones * 0.9, ones * 0.01, places, places)]


def quantised(place: Placing) -> list[Tensor]:
    return [*quantise_rows(place(drawn(ROWS, 40)))]


def products(place: Placing) -> list[Tensor]:
    left, right = (place((drawn(ROWS, 40, seed=seed) * 40).to(torch.int8)) for seed in range(2))
    return [int8_gemm(left, right, torch.ones(ROWS), torch.ones(ROWS), dtype=torch.float16, out=place(drawn(ROWS, ROWS)))]


def next_inputs(place: Placing) -> list[Tensor]:
    inputs = {name: torch.arange(ROWS) for name in ("tokens", "positions", "slots", "contexts", "indices")}
    inputs["contexts"] = integers(ROWS, first=1)
    advance(torch.arange(ROWS), **inputs, tables=place(integers(2 * ROWS).view(ROWS, 2)), block_size=2)
    return list(inputs.values())


def decoded(place: Placing) -> list[Tensor]:
    cache = drawn(2 * ROWS, 1, 16, 32, seed=1)
    tables = place(integers(2 * ROWS).view(ROWS, 2))
    return [paged_decode(place(drawn(ROWS, 2, 32)), cache, cache, tables, integers(ROWS, 9), scale=0.2, out=place(drawn(ROWS, 2, 32)))]


def prefilled(place: Placing) -> list[Tensor]:
    cache, starts = drawn(2 * ROWS, 1, 16, 32, seed=1), integers(ROWS + 1)
    q, tables, out = place(drawn(ROWS, 2, 32)), place(integers(2 * ROWS).view(ROWS, 2)), place(drawn(ROWS, 2, 32))
    return [prefill_attention(q, cache, cache, tables, starts, integers(ROWS, 9), max_query=1, scale=0.2, out=out)]


def stored(place: Placing) -> list[Tensor]:
    keys, values = torch.zeros(2, 1, 1, 16, 32).half()
    reshape_and_cache(place(drawn(ROWS, 1, 32)), place(drawn(ROWS, 1, 32, seed=1)), keys, values, torch.tensor([3, 0, 9]))
    return [keys, values]


def rotated_and_stored(place: Placing) -> list[Tensor]:
    keys, values = torch.zeros(2, 1, 1, 16, 32).half()
    turns = torch.ones(4, 16)
    qkv, out = place(drawn(ROWS, 4 * 32)), place(drawn(ROWS, 2, 32))
    slots = torch.tensor([3, 0, 9])
    return [qkv_rope_cache(qkv, turns * 0.6, turns * 0.8, torch.arange(ROWS), slots, keys, values, heads=2, out=out), keys, values]


ATTENTION = (decoded, prefilled, stored, rotated_and_stored)
OTHERS = (sums_and_norms, rotations, gates, draws, quantised, products, next_inputs)


@pytest.mark.parametrize("launch", [*ATTENTION, *OTHERS])
def test_far_rows_equal_near_ones(launch: Callable[[Placing], list[Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    # The interpreter copies every argument back from the host, here over itself: that would touch all of it.
    monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda *_: None)
    for at_far, at_near in zip(launch(far), launch(near), strict=True):
        assert torch.equal(at_far, at_near)
        assert not at_near.isnan().any()
