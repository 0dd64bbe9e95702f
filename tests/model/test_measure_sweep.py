"""What a sweep of a kernel's configs makes of those that fail, without a GPU: compiling all at once, and timing one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from mqlab.model.measure import kernels
from mqlab.model.measure.rows import Row, Skip, Spread, Swept
from mqlab.model.measure.use import Use, result


@dataclass(frozen=True)
class Config:
    """As those of kernels."""

    number: int
    num_warps: int = 4
    num_stages: int = 2

    @property
    def constants(self) -> dict[str, int]:
        """What tells it from another."""
        return {"N": self.number}


class Function:
    """A Triton kernel that notes how it was run, and fails where it is told to."""

    def __init__(self) -> None:
        self.compiled: list[int] = []
        self.launched: list[int] = []
        self.fails: Callable[[int, bool], Exception | None] = lambda number, warmup: None

    def run(self, *, number: int, warmup: bool) -> None:
        """Compile it, and launch it unless this only warms up."""
        (self.compiled if warmup else self.launched).append(number)
        if (failure := self.fails(number, warmup)) is not None:
            raise failure


class AsyncCompileMode:
    """Triton's, which compiles in the pool."""

    def __init__(self, pool: Executor, *, ignore_errors: bool) -> None:
        assert ignore_errors, "what cannot be compiled says so when it is tried"

    def __enter__(self) -> None:
        """Everything is compiled at once here."""

    def __exit__(self, *_: object) -> None:
        """Nothing is left."""


class Timer:
    """Calls once; a config's time is what is its turn's."""

    def time(self, call: Callable[[], object], runs: int) -> Spread:
        """Call it."""
        call()
        return Spread(1.0, 1.0, 1.0, runs)


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Function:
    """Of a kernel with four configs, the first of which is shipped, on what passes for a GPU."""
    own, module = Function(), ModuleType("mqlab_kernels.made")
    made: Any = module
    made.SWEEP = tuple(map(Config, range(4)))
    made.KERNELS = (SimpleNamespace(function=own),)
    made.choose = lambda: made.SWEEP[0]
    use = Use(call=lambda: own.run(number=made.choose().number, warmup=False), reference=result, args=(), outcome=result, moved=0, flops=0)
    monkeypatch.setitem(sys.modules, "mqlab_kernels.made", module)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(AsyncCompileMode=AsyncCompileMode))
    monkeypatch.setattr(kernels, "MAKERS", {"made": lambda *_: use})
    monkeypatch.setattr(kernels, "Place", lambda _: SimpleNamespace(open=lambda: torch.device("cpu")))
    monkeypatch.setattr(kernels, "timer_for", lambda _: Timer())
    return own


def swept(seconds: float = 60) -> list[Row]:
    return kernels.sweep(kind="cuda", kernel="made", case="any", dtype="bfloat16", sizes={}, runs=1, seconds=seconds)


def test_every_config_is_compiled_before_one_is_timed_and_none_is_launched_meanwhile(function: Function) -> None:
    before: list[list[int]] = []
    function.fails = lambda _, warmup: before.append([*function.launched]) if warmup else None
    (row,) = swept()
    assert function.compiled == [1, 2, 3] and function.launched == [0, 0, 1, 2, 3]
    assert before == [[0, 0]] * 3, "only the shipped one, found out and timed"
    assert isinstance(row, Swept) and row.tried == 4 and not row.failed


def test_a_config_that_cannot_be_compiled_costs_no_other(function: Function) -> None:
    function.fails = lambda number, _: ValueError("too wide\nof many lines") if number == 2 else None
    (row,) = swept()
    assert function.compiled == [1, 2, 3] and function.launched[-3:] == [1, 2, 3]
    assert isinstance(row, Swept) and row.tried == 3
    assert row.failed == ("N 2, 4 warps, 2 stages: ValueError: too wide",)


@pytest.mark.parametrize("compiling", [True, False])
def test_what_breaks_the_device_ends_the_sweep(function: Function, compiling: bool) -> None:
    broken = torch.AcceleratorError("an illegal memory access")
    function.fails = lambda number, warmup: broken if (number, warmup) == (1, compiling) else None
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        swept()
    assert 2 not in function.launched, "nothing more is asked of it"


def test_compiling_counts_towards_the_time_of_a_sweep(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(kernels, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(_: int, warmup: bool) -> None:
        now[0] += 10 * warmup

    function.fails = slow
    row, skip = swept(seconds=20)
    assert isinstance(row, Swept) and row.tried == 1
    assert isinstance(skip, Skip) and skip.name == "made, any: 3 of 4 configs" and skip.why == "its 20 s were over"
