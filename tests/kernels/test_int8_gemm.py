"""Products in 8-bit integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mqlab_kernels import catalogue
from mqlab_kernels.compile.table import Table
from mqlab_kernels.int8_gemm import LONGEST_SUM, SWEEP, int8_gemm, int8_gemm_reference, quantise_rows, quantise_rows_reference, tile
from mqlab_kernels.int8_range import LIMIT
from mqlab_kernels.kernel import Config

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
CANARY = 77.0


def integers(rows: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """[rows, size] int8 of the whole range, in a wider tensor."""
    return torch.randint(-LIMIT, LIMIT + 1, (rows, size + 3), generator=generator).to(torch.int8)[:, 1:-2]


def check_rows(rows: int, size: int, dtype: torch.dtype, spread: float, seed: int) -> None:
    wide = torch.randn(rows, size + 3, generator=torch.Generator().manual_seed(seed)).mul(spread).to(dtype)
    x = wide[:, 1:-2]
    whole, scales = quantise_rows(x)
    wanted, wanted_scales = quantise_rows_reference(x)
    torch.testing.assert_close(scales, wanted_scales, rtol=1e-6, atol=0)
    assert (whole.double() - x.double() / wanted_scales.double()[:, None]).abs().max() <= 0.5 + 1e-4
    assert (whole != wanted).sum() <= 1 + whole.numel() // 20, "but for ties, which the last bit of a scale decides"
    assert whole.abs().amax(-1).eq(LIMIT).all(), "the range is used"


def rows_of(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments of ``check_rows``."""
    spread = st.sampled_from((1e-3, 1.0, 1e4))
    parts = {"rows": st.integers(1, 5), "size": sizes, "dtype": st.sampled_from(DTYPES), "spread": spread, "seed": st.integers(0, 2**31)}
    return st.fixed_dictionaries(parts)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(rows_of(st.sampled_from((1, 17, 64, 576))))
@example({"rows": 2, "size": 8192, "dtype": torch.bfloat16, "spread": 1.0, "seed": 0})
def test_rows_are_rounded_to_the_nearest_integer(use: dict[str, Any]) -> None:
    check_rows(**use)


@pytest.mark.full
@settings(max_examples=400, deadline=None)
@given(rows_of(st.integers(1, 9000)))
def test_many_rows_are_rounded_to_the_nearest_integer(use: dict[str, Any]) -> None:
    check_rows(**use)


def test_ties_go_to_the_even_integer() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, -126.5]])
    assert quantise_rows(x)[0].tolist() == [[127, 0, 2, 2, 0, -2, -2, 0, -126]]


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-38])
def test_a_row_of_nothing_is_zeros(tiny: float) -> None:
    whole, scales = quantise_rows(torch.tensor([[tiny, -tiny, 0.0], [1.0, -1.0, 0.0]]))
    assert whole.tolist() == [[0, 0, 0], [127, -127, 0]]
    assert scales.isfinite().all()


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")
@pytest.mark.parametrize("broken", [float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_stays_so(broken: float) -> None:
    whole, scales = quantise_rows(torch.tensor([[1.0, broken, 2.0], [1.0, 2.0, 3.0]]))
    assert scales.isfinite().tolist() == [False, True]
    product = int8_gemm(whole, torch.ones(2, 3, dtype=torch.int8), scales, torch.ones(2), dtype=torch.float32)
    assert product.isfinite().all(-1).tolist() == [False, True]


def check_product(rows: int, columns: int, depth: int, dtype: torch.dtype, biased: bool = True, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = integers(rows, depth, generator), integers(columns, depth, generator)
    a_scales, b_scales = torch.rand(rows, generator=generator) * 1e-2, torch.rand(columns, generator=generator) * 1e-2
    bias = torch.randn(columns, generator=generator).to(dtype) if biased else None
    around = torch.full((rows + 2, columns + 3), CANARY, dtype=dtype)
    out = around[1:-1, 1:-2]

    assert int8_gemm(a, b, a_scales, b_scales, bias, dtype=dtype, out=out) is out

    wanted = int8_gemm_reference(a, b, a_scales, b_scales, bias)
    torch.testing.assert_close(out.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    out.fill_(CANARY)
    assert (around == CANARY).all()


def products(*sizes: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments of ``check_product``."""
    parts = dict(zip(("rows", "columns", "depth"), sizes, strict=True))
    return st.fixed_dictionaries({**parts, "dtype": st.sampled_from(DTYPES), "biased": st.booleans(), "seed": st.integers(0, 2**31)})


@settings(max_examples=20, deadline=None, derandomize=True)
@given(products(st.sampled_from((1, 2, 16, 17, 65)), st.sampled_from((1, 17, 48, 100)), st.sampled_from((1, 17, 256, 512, 576))))
def test_products(use: dict[str, Any]) -> None:
    check_product(**use)


@pytest.mark.full
@pytest.mark.timeout(600)
@settings(max_examples=200, deadline=None)
@given(products(st.integers(1, 300), st.integers(1, 300), st.integers(1, 1100)))
def test_many_products(use: dict[str, Any]) -> None:
    check_product(**use)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("depth", [64, 1999, 4096])
def test_sums_are_exact(depth: int, sign: int) -> None:
    extreme = torch.full((2, depth), LIMIT, dtype=torch.int8)
    extreme[1, ::3] = 1
    one = torch.ones(2)
    sums = int8_gemm(extreme, sign * extreme, one, one, dtype=torch.float32)
    assert sums.equal((sign * extreme.long() @ extreme.long().T).float())


@pytest.mark.parametrize(("rows", "columns"), [(1, 128), (17, 128), (65, 128), (200, 600), (1153, 40)])
def test_every_tile_comes_to_its_place(rows: int, columns: int) -> None:
    a, b = torch.arange(rows)[:, None] % 100, torch.arange(columns)[:, None] % 90
    product = int8_gemm(a.to(torch.int8), b.to(torch.int8), torch.ones(rows), torch.ones(columns), dtype=torch.float32)
    assert product.equal((a * b.T).float())


@pytest.mark.parametrize("config", SWEEP, ids=lambda config: f"{config.constants['DEPTH']}-{config.num_warps}-{config.num_stages}")
def test_every_config_is_right(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlab_kernels.int8_gemm.choose", lambda constants, capability: config)
    generator = torch.Generator().manual_seed(0)
    a, b = integers(3, 1024 + 64, generator), integers(20, 1024 + 64, generator)
    product = int8_gemm(a, b, torch.ones(3), torch.ones(20), dtype=torch.float32)
    assert product.equal((a.long() @ b.long().T).float())


@given(rows=st.integers(1, 4096), columns=st.integers(1, 200_000))
def test_tiles_hold_the_rows_of_a_small_batch_and_fill_the_processors_where_they_can(rows: int, columns: int) -> None:
    tall, wide = tile(rows, columns)
    assert rows <= tall or tall == 128
    programs = -(-rows // tall) * -(-columns // wide)
    narrowest = 16 if tall == 16 else 32
    assert programs >= 128 or wide == narrowest


def test_tensor_cores_multiply() -> None:
    table = Table.load(catalogue.kernel("int8_gemm"), Path(__file__).resolve().parents[2] / "profiles" / "kernels")
    assert {row.resources.products for row in table.shipped() if row.resources} <= {"mma", "wgmma"}


def test_nothing_times_something() -> None:
    nothing = torch.zeros(0, 32, dtype=torch.int8)
    something = torch.ones(3, 32, dtype=torch.int8)
    assert int8_gemm(nothing, something, torch.ones(0), torch.ones(3), dtype=torch.float32).shape == (0, 3)
    assert [tensor.shape for tensor in quantise_rows(torch.ones(0, 32))] == [(0, 32), (0,)]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((2, 32), (3, 33), "equal"),
        ((1, LONGEST_SUM + 1), (1, LONGEST_SUM + 1), "at most"),
    ],
)
def test_what_does_not_fit_is_refused(a: tuple[int, int], b: tuple[int, int], message: str) -> None:
    left, right = (torch.zeros(shape, dtype=torch.int8) for shape in (a, b))
    with pytest.raises(ValueError, match=message):
        int8_gemm(left, right, torch.ones(len(left)), torch.ones(len(right)), dtype=torch.float32)


def test_transposed_operands_are_refused() -> None:
    square = torch.zeros(32, 32, dtype=torch.int8)
    with pytest.raises(ValueError, match="transpose"):
        int8_gemm(square, square.T, torch.ones(32), torch.ones(32), dtype=torch.float32)
    with pytest.raises(ValueError, match="side by side"):
        quantise_rows(torch.zeros(17, 2).T)
