"""What the device bench calls a difference, and a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mqlab.model.measure.timers import HostTimer, spread
from mqlab.model.measure.use import Use, result


def use(call: Callable[..., Any], reference: Callable[..., Any], *args: Any, **more: Any) -> Use:
    return Use(**{"call": call, "reference": reference, "args": args, "outcome": result, "moved": 0, "flops": 0, **more})


X = torch.linspace(-1, 1, 101)


def exact(x: torch.Tensor) -> torch.Tensor:
    return x.double() * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rounding_is_tolerated_and_a_wrong_number_is_not(dtype: torch.dtype) -> None:
    def off(x: torch.Tensor) -> torch.Tensor:
        y = exact(x).to(dtype)
        y[7] *= 1.1
        return y

    assert use(lambda x: exact(x).to(dtype), exact, X.to(dtype)).error() < 0.6
    assert use(off, exact, X.to(dtype)).error() > 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_is_wrong(bad: float) -> None:
    assert use(lambda x: torch.full_like(x, bad), exact, X).error() == float("inf")


def test_where_nothing_is_expected_but_zeros_a_zero_agrees_and_another_number_does_not() -> None:
    assert use(torch.zeros_like, torch.zeros_like, X).error() == 0
    assert use(torch.ones_like, torch.zeros_like, X).error() > 1


def test_what_a_kernel_writes_to_is_compared_and_its_inputs_are_left_as_they_were() -> None:
    def add(x: torch.Tensor, target: torch.Tensor) -> None:
        target += x

    def add_wrong(x: torch.Tensor, target: torch.Tensor) -> None:
        target += x
        target[3] = 9

    target = torch.ones(101)
    written: dict[str, Any] = {"outcome": lambda _, args: (args[1],)}
    assert use(add, add, X, target, **written).error() == 0
    assert use(add_wrong, add, X, target, **written).error() > 1
    assert torch.equal(target, torch.ones(101))


def test_whole_numbers_agree_exactly_but_int8_which_may_be_rounded_either_way() -> None:
    count = torch.arange(5)
    assert use(lambda x: x, lambda x: x, count).error() == 0
    assert use(lambda x: x + (x == 3), lambda x: x, count).error() == float("inf")
    near = use(lambda x: x, lambda x: x + (x == 3), count.to(torch.int8))
    assert near.error() == 1
    assert use(lambda x: x, lambda x: x + 2 * (x == 3), count.to(torch.int8)).error() == 2


def test_of_drawn_tokens_one_in_fifty_may_differ() -> None:
    tokens = torch.arange(100)
    one, three = (lambda x, most=most: x + (x < most) for most in (1, 3))
    assert use(one, lambda x: x, tokens, drawn=True).error() == pytest.approx(0.5)
    assert use(three, lambda x: x, tokens, drawn=True).error() == pytest.approx(1.5)


def test_another_shape_is_an_error_that_names_both() -> None:
    with pytest.raises(ValueError, match=r"\(50,\).*\(101,\)"):
        use(lambda x: x[:50], lambda x: x, X).error()


def test_a_time_is_the_median_of_as_many_runs_as_were_asked_for() -> None:
    calls: list[int] = []
    found = HostTimer().time(lambda: calls.append(1), 7)
    assert len(calls) == found.runs == 7 and 0 <= found.low <= found.median <= found.high
    assert spread([3.0, 1.0, 2.0]).median == 2
