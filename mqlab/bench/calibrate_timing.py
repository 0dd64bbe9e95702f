"""Times steps on a runner: in turns, in another order each round, so that what changes over time changes for all."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from mqlab.bars import progress_bar
from mqlab.bench.calibrate_steps import Step, filling, plan_of
from mqlab.plan import Runner

Times = dict[Step, list[float]]
"""Seconds by step, one a round."""


def time_steps(runner: Runner, steps: Sequence[Step], rounds: int, budget: int, seed: int) -> Times:
    """Run every step once a round; a round that warms up comes first and is not counted.

    What is timed is launch and wait together: forward pass, sampling, and what the runner does around them.

    Args:
        budget: tokens of one step at most while the cache is filled, before the first round.
        seed: of tokens and order.
    """
    draw = random.Random(seed)
    largest = max(steps, key=lambda step: step.blocks(runner.info.block_size))
    times: Times = {step: [] for step in steps}
    fillers = list(filling(largest, runner.info, draw, budget))
    with progress_bar("timing steps", total=len(fillers) + (rounds + 1) * len(steps), unit="step") as bar:
        for plan in fillers:
            runner.launch(plan).wait()
            bar.update()
        for number in range(rounds + 1):
            for step in draw.sample(steps, len(steps)):
                taken = _timed(runner, step, draw)
                times[step] += [taken] if number else []
                bar.update()
    return times


def _timed(runner: Runner, step: Step, draw: random.Random) -> float:
    """Seconds."""
    plan = plan_of(step, runner.info, draw)
    begin = time.perf_counter()
    runner.launch(plan).wait()
    return time.perf_counter() - begin
