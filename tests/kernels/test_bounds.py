"""A kernel that loads or stores outside of its tensors is noticed: so is it of every kernel whose tests are in this folder."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError


@triton.jit
def copy_kernel(source, out, count, read, written):
    at = tl.arange(0, 16)
    tl.store(out + at, tl.load(source + at, mask=at < read, other=0), mask=at < written)
    tl.store(out, tl.load(source + count))


def copied(read: int, written: int, count: int = 0) -> torch.Tensor:
    """Of 8 elements in the middle of 24 into as many."""
    wide, out = torch.arange(24), torch.zeros(24, dtype=torch.int64)
    copy_kernel[(1,)](wide[8:16], out[8:16], count, read, written)
    return out[8:16]


def test_what_is_inside_is_touched() -> None:
    assert copied(8, 8).tolist() == list(range(8, 16))


@pytest.mark.parametrize(
    ("reach", "what"),
    [((9, 8), "1 elements of a load"), ((8, 10), "2 elements of a store"), ((8, 8, 8), "1 elements of a load"), ((8, 8, -1), "a load")],
)
def test_what_is_outside_is_not(reach: tuple[int, ...], what: str) -> None:
    with pytest.raises(InterpreterError, match=what):
        copied(*reach)
