"""From timed steps to a device: the parameters of ``step_seconds`` that come closest to all of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from mqlab.bench.calibrate_steps import Step, plan_of
from mqlab.bench.calibrate_timing import Times
from mqlab.model.cost import ModelCost, Work
from mqlab.model.device import Device, Fit
from mqlab.model.fit import Row, fit
from mqlab.model.sim_work import rounds_of
from mqlab.types import ModelInfo

FREE = ("bandwidth_share", "flops_share", "exponent", "step_ms", "sequence_us", "context_ns", "cached_ns", "crowd_ns")
"""What is fitted. Not ``token_us``: beside ``flops_share`` nothing tells it apart."""

_START = Fit(
    bandwidth_share=1.0, flops_share=1.0, exponent=1.5, step_ms=1.0, sequence_us=10.0, context_ns=100.0, cached_ns=100.0, crowd_ns=10.0
)

_MOST = {"exponent": 6.0, "bandwidth_share": 10.0, "flops_share": 10.0}
"""Where a parameter stops when the steps do not tell it: that exponent is max() for all that measurements can say, and a share is of what
some step has reached at least."""


@dataclass(frozen=True)
class Timed:
    """A step, what it asks of a device, and how long it took, in s, each time."""

    step: Step
    work: Work
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """What is fitted to."""
        return median(self.seconds)


def timed_of(times: Times, info: ModelInfo, cost: ModelCost) -> list[Timed]:
    """The steps of a model with this cost, as the simulated device would count them."""
    draw = random.Random(0)
    return [Timed(step, rounds_of(plan_of(step, info, draw), cost)[0], tuple(seconds)) for step, seconds in times.items()]


def fit_device(timed: Sequence[Timed], cost: ModelCost, dtype: str, memory_gib: float) -> Device:
    """The device on which every step takes about the median of its times; its shares are 1, its peaks what was reached.

    Args:
        timed: more steps than there are parameters.
        cost: of the model that ran, in ``dtype``.
    """
    guess = _guess(timed, cost, dtype, memory_gib)
    rows = [Row(guess, cost, one.work, one.median_s) for one in timed]
    found = _fit_bounded(rows)
    return replace(
        guess,
        bandwidth_tb_s=guess.bandwidth_tb_s * found.bandwidth_share,
        tflops=guess.tflops * found.flops_share,
        fit=replace(found, bandwidth_share=1.0, flops_share=1.0),
    )


def _fit_bounded(rows: Sequence[Row]) -> Fit:
    free: list[str] = [*FREE]
    start = _START
    found = fit(rows, free, start)
    for name, most in _MOST.items():
        if getattr(found, name) > most:
            free.remove(name)
            start = replace(start, **{name: most})
            found = fit(rows, free, start)
    return found


def _guess(timed: Sequence[Timed], cost: ModelCost, dtype: str, memory_gib: float) -> Device:
    """Peaks of the right size: the weights read in the fastest step, the operations of the one that does most a second."""
    moved = cost.layer_bytes / min(one.median_s for one in timed)
    flops = max((cost.layer_flops * one.work.tokens + cost.head_flops * one.work.sampled) / one.median_s for one in timed)
    facts = {"bandwidth_tb_s": moved / 1e12, "tflops": flops / 1e12, "memory_gib": memory_gib}
    return Device.of({"name": "fitted", "dtype": dtype, **facts})
