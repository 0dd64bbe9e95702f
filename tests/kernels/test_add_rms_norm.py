"""The residual's sum and its norm against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mqlab_kernels.add_rms_norm import add_rms_norm, add_rms_norm_reference

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
CANARY = 77.0


def draw(rows: int, size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A view with strides of its own into a wider tensor of canaries, as a part of a fused projection is."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.full((rows + 2, size + 5), CANARY, dtype=dtype)
    view = wide[1:-1, 2:-3]
    view.copy_(torch.randn(rows, size, generator=generator) * 3)
    return view


def canaries_of(view: torch.Tensor) -> torch.Tensor:
    """What lies around a view."""
    whole = view._base
    assert whole is not None
    outside = torch.ones(whole.shape, dtype=torch.bool)
    outside[1:-1, 2:-3] = False
    return whole[outside]


def check(rows: int, size: int, dtype: torch.dtype, residual_dtype: torch.dtype | None = None, eps: float = 1e-5, seed: int = 0) -> None:
    x, out = draw(rows, size, dtype, seed), draw(rows, size, dtype, seed)
    weight = torch.rand(size, generator=torch.Generator().manual_seed(seed)) + 0.5
    residual = None if residual_dtype is None else draw(rows, size, residual_dtype, seed + 1)
    wanted_residual = None if residual is None else residual.clone()
    wanted = add_rms_norm_reference(x, wanted_residual, weight, eps)

    assert add_rms_norm(x, residual, weight, eps, out=out) is out

    coarsest = max(TOLERANCE[one] for one in (dtype, residual_dtype or dtype))
    torch.testing.assert_close(out.double(), wanted, rtol=coarsest, atol=coarsest)
    assert (canaries_of(out) == CANARY).all()
    if residual is not None and wanted_residual is not None:
        torch.testing.assert_close(residual, wanted_residual, rtol=TOLERANCE[residual.dtype], atol=TOLERANCE[residual.dtype])
        assert (canaries_of(residual) == CANARY).all()


def uses(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments of ``check``."""
    parts = {
        "rows": st.integers(1, 4),
        "size": sizes,
        "dtype": st.sampled_from(DTYPES),
        "residual_dtype": st.sampled_from((*DTYPES, None)),
        "eps": st.sampled_from((1e-6, 1e-5, 0.1)),
        "seed": st.integers(0, 2**31),
    }
    return st.fixed_dictionaries(parts)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(uses(st.sampled_from((1, 2, 17, 100, 576))))
def test_sum_and_norm(use: dict[str, Any]) -> None:
    check(**use)


@pytest.mark.full
@settings(max_examples=400, deadline=None)
@given(uses(st.integers(1, 2100)))
def test_many_sums_and_norms(use: dict[str, Any]) -> None:
    check(**use)


@pytest.mark.parametrize("size", [5120, 8192])
def test_long_rows(size: int) -> None:
    check(2, size, torch.bfloat16, torch.bfloat16)
    check(1, size, torch.float16)


def test_the_norm_may_go_where_its_input_was() -> None:
    x, weight = torch.randn(3, 17), torch.ones(17)
    wanted = add_rms_norm_reference(x, None, weight, 1e-5)
    add_rms_norm(x, None, weight, 1e-5, out=x)
    torch.testing.assert_close(x.double(), wanted, rtol=2e-6, atol=2e-6)


def test_a_row_of_zeros_gives_zeros() -> None:
    assert add_rms_norm(torch.zeros(2, 17), torch.zeros(2, 17), torch.ones(17), 1e-5).eq(0).all()


def test_no_rows() -> None:
    assert add_rms_norm(torch.zeros(0, 17), torch.zeros(0, 17), torch.ones(17), 1e-5).shape == (0, 17)


def test_rows_that_are_not_contiguous_are_refused() -> None:
    with pytest.raises(ValueError, match="side by side"):
        add_rms_norm(torch.zeros(17, 2).T, None, torch.ones(17), 1e-5)
