"""One use of a kernel: its inputs, its reference, what it has to move and compute; and how the two are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Of the root mean square of what is expected, and of its own size."""

LEAST_SAME = 0.98
"""Share of drawn tokens that must be the same: where two logits are closer than rounding, either may win."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """A call of a kernel's launcher.

    Attributes:
        call: the launcher; ``reference`` takes the same arguments.
        args, kwargs: of both. What a kernel writes to is among ``args``.
        outcome: what is compared, of a call's result and its arguments afterwards.
        moved: bytes that have to be read and written at least, each once.
        flops: operations that have to be done.
        drawn: the outcome is tokens that were drawn.
    """

    call: Callable[..., Any]
    reference: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    outcome: Callable[[Any, tuple[Any, ...]], tuple[Tensor, ...]]
    moved: int
    flops: int
    drawn: bool = False

    def run(self) -> Any:
        """Launch it."""
        return self.call(*self.args, **self.kwargs)

    def error(self) -> float:
        """The largest difference from the reference, as a multiple of what is tolerated. Both get the arguments as they are now."""
        own, given = _copied(self.args), _copied(self.args)
        got = self.outcome(self.call(*own, **self.kwargs), own)
        wanted = self.outcome(self.reference(*given, **self.kwargs), given)
        measure = _share_wrong if self.drawn else _difference
        return max(measure(one, other) for one, other in zip(got, wanted, strict=True))


def result(got: Any, _: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """The outcome that is what a call returns."""
    return got if isinstance(got, tuple) else (got,)


def tolerated(dtype: torch.dtype) -> str:
    """In words."""
    return f"{TOLERANCE[dtype]:g} of the value and of the root mean square" if dtype in TOLERANCE else "exact"


def _copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one.clone() if isinstance(one, Tensor) else one for one in args)


def _difference(got: Tensor, wanted: Tensor) -> float:
    if got.shape != wanted.shape:
        raise ValueError(f"its result has the shape {tuple(got.shape)}, the reference's {tuple(wanted.shape)}")
    if got.dtype == torch.int8:  # a value between two whole numbers may be rounded to either
        return float((got.int() - wanted.int()).abs().max())
    if not got.is_floating_point():
        return 0.0 if torch.equal(got, wanted.to(got.dtype)) else float("inf")
    exact = wanted.double()
    allowed = TOLERANCE[got.dtype] * (exact.square().mean().sqrt() + exact.abs())
    worst = ((got.double() - exact).abs() / allowed.clamp_min(torch.finfo(torch.float32).tiny)).max()
    return float("inf") if worst.isnan() else float(worst)


def _share_wrong(got: Tensor, wanted: Tensor) -> float:
    return float((got != wanted).double().mean()) / (1 - LEAST_SAME)
