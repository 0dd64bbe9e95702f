"""A step's inputs from the tokens of the step before."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mqlab_kernels.advance import SWEEP, advance, advance_reference
from mqlab_kernels.kernel import Config

NAMES = ("tokens", "positions", "slots", "contexts", "indices")


def batch(rows: int, block_size: int, width: int, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Sequences at any position that a table of ``width`` blocks has, about a third of the rows padded, some blocks not given yet."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, (rows,), generator=generator)

    tables = torch.randperm(rows * width, generator=generator).view(rows, width).to(torch.int32)
    positions = integers(0, width * block_size)
    at = torch.arange(rows)
    slots = tables[at, positions // block_size].long() * block_size + positions % block_size
    inputs = {
        "tokens": integers(0, 1000),
        "positions": positions,
        "slots": torch.where(integers(0, 3) == 0, -1, slots),
        "contexts": (positions + 1).to(torch.int32),
        "indices": integers(0, 50),
    }
    tables[torch.arange(width) > (positions // block_size + integers(0, 2))[:, None]] = -1
    return inputs, tables


@settings(max_examples=20, deadline=None, derandomize=True)
@given(rows=st.integers(1, 12), block_size=st.sampled_from((1, 2, 3, 16)), width=st.integers(1, 4), seed=st.integers(0, 2**31))
@example(rows=33, block_size=4, width=2, seed=3)
def test_steps_follow_each_other(rows: int, block_size: int, width: int, seed: int) -> None:
    check(rows, block_size, width, seed)


@pytest.mark.full
@settings(max_examples=300, deadline=None)
@given(rows=st.integers(1, 70), block_size=st.integers(1, 40), width=st.integers(1, 9), seed=st.integers(0, 2**31))
def test_many_steps_follow_each_other(rows: int, block_size: int, width: int, seed: int) -> None:
    check(rows, block_size, width, seed)


def check(rows: int, block_size: int, width: int, seed: int) -> None:
    """Three steps equal the reference's."""
    got, tables = batch(rows, block_size, width, seed)
    wanted = {name: tensor.clone() for name, tensor in got.items()}
    for step in range(3):
        sampled = torch.randint(-1, 1000, (rows,), generator=torch.Generator().manual_seed(seed + step))
        advance(sampled, **got, tables=tables, block_size=block_size)
        advance_reference(sampled, **wanted, tables=tables, block_size=block_size)
        for name in NAMES:
            torch.testing.assert_close(got[name], wanted[name], rtol=0, atol=0)


@pytest.mark.parametrize("config", SWEEP, ids=lambda config: str(config.constants["ROWS"]))
def test_every_config_is_right(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlab_kernels.advance.choose", lambda constants, capability: config)
    got, tables = batch(70, 4, 3, seed=5)
    wanted = {name: tensor.clone() for name, tensor in got.items()}
    sampled = torch.arange(70)
    advance(sampled, **got, tables=tables, block_size=4)
    advance_reference(sampled, **wanted, tables=tables, block_size=4)
    assert all(got[name].equal(wanted[name]) for name in NAMES)


def one(position: int, slot: int) -> dict[str, torch.Tensor]:
    """One sequence in blocks of 4."""
    return {
        "tokens": torch.tensor([5]),
        "positions": torch.tensor([position]),
        "slots": torch.tensor([slot]),
        "contexts": torch.tensor([position + 1], dtype=torch.int32),
        "indices": torch.tensor([9]),
    }


def values(inputs: dict[str, torch.Tensor]) -> list[int]:
    """In the order of NAMES."""
    return [int(inputs[name]) for name in NAMES]


TABLES = torch.tensor([[7, 2, -1]], dtype=torch.int32)


@pytest.mark.parametrize(
    ("position", "slot", "sampled", "after"),
    [
        (1, 29, 42, [42, 2, 30, 3, 10]),
        (3, 31, 42, [42, 4, 8, 5, 10]),
        (0, 28, -1, [0, 1, 29, 2, 10]),
        (1, -1, 42, [5, 1, -1, 2, 9]),
        (7, 11, 42, [5, 7, -1, 8, 9]),
    ],
    ids=["within a block", "into the next block", "no token", "padded", "no block"],
)
def test_one_sequence(position: int, slot: int, sampled: int, after: list[int]) -> None:
    inputs = one(position, slot)
    advance(torch.tensor([sampled]), **inputs, tables=TABLES, block_size=4)
    assert values(inputs) == after


def test_a_table_may_be_a_part_of_a_wider_one_and_ends_where_it_ends() -> None:
    inputs = one(7, 11)
    advance(torch.tensor([42]), **inputs, tables=torch.tensor([[7, 2, 3]], dtype=torch.int32)[:, :2], block_size=4)
    assert values(inputs) == [5, 7, -1, 8, 9]


def test_a_slot_may_pass_32_bits() -> None:
    inputs = one(3, 31)
    advance(torch.tensor([42]), **inputs, tables=torch.tensor([[7, 2**31 - 1]], dtype=torch.int32), block_size=4)
    assert int(inputs["slots"]) == (2**31 - 1) * 4


def test_what_is_not_contiguous_is_refused() -> None:
    inputs = {name: tensor.repeat(4)[::2] for name, tensor in one(1, 29).items()}
    with pytest.raises(ValueError, match="contiguous"):
        advance(torch.zeros(2, dtype=torch.int64), **inputs, tables=TABLES.repeat(2, 1), block_size=4)
