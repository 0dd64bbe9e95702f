"""Linear layers in 8-bit integers, by torch and by the kernels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlab.errors import ConfigError
from mqlab.model.accel import quantised
from mqlab.model.accel.quantised import quantised_product

BACKENDS = ("torch", "triton")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    backend=st.sampled_from(BACKENDS),
    dtype=st.sampled_from(DTYPES),
    rows=st.sampled_from((1, 7, 33)),
    biased=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_it_is_close_to_the_dense_product(backend: str, dtype: torch.dtype, rows: int, biased: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Rows and columns of very different sizes: a scale for all of them would not do.
    weight = (torch.randn(96, 200, generator=generator) * torch.logspace(-2, 1, 96)[:, None]).to(dtype)
    x = (torch.randn(rows, 200, generator=generator) * torch.logspace(-1, 1, rows)[:, None]).to(dtype)
    bias = torch.randn(96, generator=generator).to(dtype) if biased else None
    got = quantised_product(weight, bias, backend=backend)(x)
    wanted = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    lengths = x.double().norm(dim=1)[:, None] * weight.double().norm(dim=1)
    assert got.dtype == dtype
    assert ((got.double() - wanted).abs() <= 0.004 * lengths + 2**-6 * wanted.abs()).all()


def test_torch_and_the_kernels_agree() -> None:
    weight, x = torch.randn(40, 576), torch.randn(5, 576)
    by_torch, by_kernels = (quantised_product(weight, backend=backend)(x) for backend in BACKENDS)
    # An element on the border of two integers may go to either.
    assert (by_kernels - by_torch).norm() < 2e-3 * by_torch.norm()


def test_the_sums_are_exact_whatever_this_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.full((3, 1999), 127.0)
    x = torch.stack([torch.full((1999,), 127.0), torch.full((1999,), -127.0)])
    product, wanted = quantised_product(weight), (x.double() @ weight.double().T).float()
    assert product(x).equal(wanted)
    monkeypatch.setattr(quantised, "sums_are_exact", lambda: False)
    assert product(x).equal(wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_in_nothing_out(backend: str) -> None:
    assert quantised_product(torch.zeros(3, 17), backend=backend)(torch.zeros(2, 17)).eq(0).all()
    assert quantised_product(torch.ones(3, 17), torch.ones(3), backend=backend)(torch.zeros(2, 17)).eq(1).all()


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none_in_its_row(backend: str, broken: float) -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [1.0, broken, 3.0]])
    assert quantised_product(torch.ones(4, 3), backend=backend)(x).isfinite().all(-1).tolist() == [True, False]


def test_without_triton_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install"):
        quantised_product(torch.ones(3, 17), backend="triton")
