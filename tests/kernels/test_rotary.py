"""Rotary positions in the interpreter against float64, with the angles of every kind of scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mqlab_kernels.kernel import CAPABILITIES
from mqlab_kernels.rotary import CASES, SWEEP, choose, rotary, rotary_reference
from paged_kv import assert_close, canaries_live, guarded, uniform

from mqlab.model.rope import KINDS, Rope
from mqlab.model.rope_tables import rope_tables

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {"factor": 8.0, "original_len": 64},
    "yarn": {"factor": 4.0, "original_len": 32, "attention_factor": 1.14},
}


def heads_of(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    whole, x = guarded(shape, dtype)
    x.copy_(uniform(shape, torch.Generator().manual_seed(seed)))
    return whole, x


def check(x: torch.Tensor, whole: torch.Tensor, rope: Rope, rotary_dim: int, positions: torch.Tensor) -> None:
    """Turned as float64 turns it, what is not turned bit for bit the same, and nothing around touched."""
    cos, sin = rope_tables(rope, rotary_dim, 300)
    before, expected = x.clone(), rotary_reference(x, cos, sin, positions)
    rotary(x, cos, sin, positions)
    assert_close(x, expected)
    assert torch.equal(x[..., rotary_dim:], before[..., rotary_dim:])
    assert canaries_live(whole)


@st.composite
def launches(draw: st.DrawFn) -> tuple[Any, ...]:
    size, tokens = draw(st.sampled_from([32, 48, 64, 80, 96, 112, 128, 192, 256])), draw(st.integers(1, 4))
    dtype, seed = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])), draw(st.integers(0, 2**32 - 1))
    whole, x = heads_of((tokens, draw(st.sampled_from([1, 2, 3, 7, 16, 17, 33])), size), dtype, seed)
    kind = draw(st.sampled_from(KINDS))
    rotary_dim = draw(st.just(size) | st.integers(1, size // 2).map(lambda half: 2 * half))
    positions = torch.tensor(draw(st.lists(st.integers(0, 299), min_size=tokens, max_size=tokens)))
    return x, whole, Rope(theta=draw(st.sampled_from([100.0, 1e4, 5e5])), kind=kind, **SCALINGS[kind]), rotary_dim, positions


@settings(deadline=None, max_examples=10, derandomize=True)
@given(launches())
def test_rotary_equals_the_reference(launch: tuple[Any, ...]) -> None:
    check(*launch)


@pytest.mark.full
@settings(deadline=None, max_examples=400)
@given(launches())
def test_many_rotaries_equal_the_reference(launch: tuple[Any, ...]) -> None:
    check(*launch)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_scaling_turns_by_its_own_angles(kind: str) -> None:
    whole, x = heads_of((3, 2, 64), torch.float32)
    plain = x.clone()
    positions = torch.tensor([0, 37, 299])
    check(x, whole, Rope(theta=1e4, kind=kind, **SCALINGS[kind]), 64, positions)
    rotary(plain, *rope_tables(Rope(theta=1e4), 64, 300), positions)
    assert torch.allclose(x[1:], plain[1:], atol=1e-3) == (kind == "default")


def test_a_view_of_fused_projections_is_turned_in_place() -> None:
    fused = uniform((3, 5 * 32), torch.Generator().manual_seed(1))
    before = fused.clone()
    cos, sin = rope_tables(Rope(theta=1e4), 32, 10)
    positions = torch.tensor([1, 2, 9])
    rotary(fused[:, 32:96].view(3, 2, 32), cos, sin, positions)
    assert_close(fused[:, 32:96].view(3, 2, 32), rotary_reference(before[:, 32:96].view(3, 2, 32), cos, sin, positions))
    assert torch.equal(fused[:, :32], before[:, :32])
    assert torch.equal(fused[:, 96:], before[:, 96:])


def test_no_tokens_is_no_launch() -> None:
    rotary(torch.empty(0, 2, 32), *rope_tables(Rope(theta=1e4), 32, 10), torch.empty(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("x", "cos", "told"),
    [
        (torch.zeros(1, 2, 16), torch.zeros(4, 16), "turn 32 dimensions"),
        (torch.zeros(1, 2, 32), torch.zeros(4, 16, dtype=torch.float64), "float32"),
        (torch.zeros(1, 2, 32), torch.zeros(16, 4).T, "contiguous"),
        (torch.zeros(1, 32, 2).transpose(1, 2), torch.zeros(4, 16), "side by side"),
    ],
)
def test_what_does_not_fit_is_refused(x: torch.Tensor, cos: torch.Tensor, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        rotary(x, cos, cos, torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_case_has_a_config_of_the_sweep(capability: int) -> None:
    assert all(choose(case.constants, capability) in SWEEP for case in CASES)
