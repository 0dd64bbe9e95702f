"""The gate of an MLP against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mqlab_kernels.gated import ACTIVATIONS, SWEEP, gated, gated_reference
from mqlab_kernels.kernel import Config

TOLERANCE = {torch.float32: 3e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
CANARY = 77.0


def check(rows: int, size: int, activation: str, dtype: torch.dtype, spread: float = 3.0, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.full((rows, 2 * size + 3), CANARY, dtype=dtype)
    raised = wide[:, 1 : 2 * size + 1]
    raised.copy_(torch.randn(rows, 2 * size, generator=generator) * spread)
    around = torch.full((rows + 2, size + 3), CANARY, dtype=dtype)
    out = around[1:-1, 1 : size + 1]
    wanted = gated_reference(raised, activation)

    assert gated(raised, activation, out=out) is out

    torch.testing.assert_close(out.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    out.fill_(CANARY)
    assert (around == CANARY).all()


def uses(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments of ``check``."""
    parts = {
        "rows": st.integers(1, 4),
        "size": sizes,
        "activation": st.sampled_from(ACTIVATIONS),
        "dtype": st.sampled_from(tuple(TOLERANCE)),
        "spread": st.sampled_from((0.1, 3.0)),
        "seed": st.integers(0, 2**31),
    }
    return st.fixed_dictionaries(parts)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(uses(st.sampled_from((1, 3, 17, 576))))
def test_halves_are_gated(use: dict[str, Any]) -> None:
    check(**use)


@pytest.mark.full
@settings(max_examples=400, deadline=None)
@given(uses(st.integers(1, 2100)))
def test_many_halves_are_gated(use: dict[str, Any]) -> None:
    check(**use)


def test_rows_of_several_blocks() -> None:
    check(2, 1024, "silu", torch.bfloat16)
    check(1, 2049, "gelu", torch.float16)
    check(1, 4096, "tanh_gelu", torch.float32)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_far_from_zero_it_is_the_identity_or_nothing(activation: str) -> None:
    gates = torch.tensor([[300.0, 1e4, 1e12, -300.0, -1e4, -1e12, 0.0, -0.0]])
    result = gated(torch.cat([gates, torch.ones_like(gates)], 1), activation)
    torch.testing.assert_close(result, gates.clamp(min=0), rtol=1e-6, atol=1e-20)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_result_may_go_where_the_gate_was(activation: str) -> None:
    raised = torch.randn(3, 34)
    wanted = gated_reference(raised, activation)
    gated(raised, activation, out=raised[:, :17])
    torch.testing.assert_close(raised[:, :17].double(), wanted, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("config", SWEEP, ids=lambda config: str(config.constants["BLOCK"]))
def test_every_config_is_right(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlab_kernels.gated.choose", lambda constants, capability: config)
    raised = torch.randn(2, 2 * 1100)
    torch.testing.assert_close(gated(raised, "silu").double(), gated_reference(raised, "silu"), rtol=3e-6, atol=3e-6)


def test_no_rows() -> None:
    assert gated(torch.zeros(0, 34), "silu").shape == (0, 17)


@pytest.mark.parametrize("raised", [torch.zeros(2, 5), torch.zeros(6, 2).T], ids=["odd", "transposed"])
def test_what_has_no_two_halves_is_refused(raised: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="two halves"):
        gated(raised, "silu")


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="silu"):
        gated(torch.zeros(2, 4), "swish")
