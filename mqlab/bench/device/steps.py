"""Decode steps of a model on the device, and how long the device waits between the steps of an engine.

What is here runs in the bench's process for jobs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median

import numpy as np

from mqlab.bench.calibrate_steps import Part, Step, filling, plan_of
from mqlab.bench.device.cut_short import CutShort
from mqlab.clock import MonotonicClock
from mqlab.config import EngineConfig
from mqlab.engine.core import apply, step
from mqlab.engine.engine_core import EngineCore
from mqlab.model.measure.rows import Bubble, Planning, Row, Skip, Spread, StepTime
from mqlab.models.resolve import load_config
from mqlab.plan import Plan, Runner
from mqlab.types import Event, Request, SamplingParams
from mqlab.types import Step as Emitted

_WARM_UP = 3
_SEED = 11
_PROMPT = 32
_PLANNINGS: tuple[Planning, ...] = ("plain", "async")


def steps(*, engine: EngineConfig, shapes: Sequence[tuple[int, int]], runs: int) -> list[Row]:
    """Times of decode steps.

    Args:
        shapes: batches, and the context of each of their sequences.

    Raises:
        CutShort: one failed, and some did not.
    """
    with _runner_of(engine) as runner:
        return _until_one_fails(_step_times(runner, engine, shapes, runs))


def steps_and_bubbles(*, engine: EngineConfig, shapes: Sequence[tuple[int, int]], runs: int, output_len: int) -> list[Row]:
    """Times of decode steps, and then of a whole engine over the same runner, with as many sequences as the last of the shapes has.

    Raises:
        CutShort: as ``steps``.
    """
    with _runner_of(engine) as runner:
        measured = chain(_step_times(runner, engine, shapes, runs), _bubbles(runner, engine, shapes[-1][0], runs, output_len))
        return _until_one_fails(measured)


def _until_one_fails(rows: Iterator[Row]) -> list[Row]:
    """All of them; or CutShort with those that could be had, for the model took longer to make than they did to measure."""
    found: list[Row] = []
    try:
        for row in rows:
            found.append(row)
    except Exception as error:
        if not found:
            raise
        raise CutShort(found) from error
    return found


@contextmanager
def _runner_of(engine: EngineConfig) -> Iterator[Runner]:
    from mqlab.model.either import build

    runner = build(engine)
    try:
        yield runner
    finally:
        runner.close()


def _step_times(runner: Runner, engine: EngineConfig, shapes: Sequence[tuple[int, int]], runs: int) -> Iterator[StepTime]:
    from mqlab.model.cost import ModelCost

    cost, draw = ModelCost.of(load_config(Path(runner.info.path)), runner.info.dtype), random.Random(_SEED)
    made = [Step((Part(batch, 1, context - 1),)) for batch, context in shapes]
    largest = max(made, key=lambda one: one.blocks(runner.info.block_size))
    for plan in filling(largest, runner.info, draw, engine.max_num_batched_tokens):
        runner.launch(plan).wait()
    for (batch, context), one in zip(shapes, made, strict=True):
        yield StepTime(
            model=runner.info.name,
            batch=batch,
            context=context,
            mode="eager" if engine.enforce_eager else "graph",
            time=_alone(runner, one, runs, draw),
            device_us=_queued_us(runner, one, runs, draw),
            moved=cost.layer_bytes + cost.head_bytes + batch * context * cost.kv_bytes,
        )


def _alone(runner: Runner, one: Step, runs: int, draw: random.Random) -> Spread:
    """Each step launched when the one before it has landed."""
    times = [_alone_us(runner, plan_of(one, runner.info, draw)) for _ in range(_WARM_UP + runs)][_WARM_UP:]
    low, middle, high = np.percentile(times, (10, 50, 90)).tolist()
    return Spread(middle, low, high, runs)


def _alone_us(runner: Runner, plan: Plan) -> float:
    begin = time.perf_counter_ns()
    runner.launch(plan).wait()
    return (time.perf_counter_ns() - begin) / 1e3


def _queued_us(runner: Runner, one: Step, runs: int, draw: random.Random) -> float:
    """µs of the device for a step that was launched while the one before it ran: no time of the host is in it. 0 where nobody knows."""
    flight = runner.launch(plan_of(one, runner.info, draw))
    taken = []
    for _ in range(_WARM_UP + runs):
        following = runner.launch(plan_of(one, runner.info, draw))
        taken.append(flight.wait().device_ns)
        flight = following
    flight.wait()
    return median(taken[_WARM_UP:]) / 1e3


def _bubbles(runner: Runner, engine: EngineConfig, batch: int, runs: int, output_len: int) -> Iterator[Row]:
    device_us = _queued_us(runner, Step((Part(batch, 1, _PROMPT + output_len // 2),)), runs, random.Random(_SEED))
    if not device_us:
        yield Skip("steps", f"bubbles of {runner.info.name}", "the runner draws on the host and does not tell what the device took")
        return
    for planning in _PLANNINGS:
        yield _bubble(runner, engine, batch, output_len, planning, device_us)


def _bubble(runner: Runner, engine: EngineConfig, batch: int, output_len: int, planning: Planning, device_us: float) -> Bubble:
    core = EngineCore(runner, replace(engine, async_scheduling=planning == "async"), MonotonicClock())
    draw = random.Random(_SEED)
    params = SamplingParams(max_tokens=output_len, ignore_eos=True)
    for number in range(batch):
        apply(core, Request(f"b{number}", [draw.randrange(runner.info.vocab_size) for _ in range(_PROMPT)], params))
    stamps = []
    while core.has_work:
        if _is_full(step(core), batch):
            stamps.append(time.perf_counter_ns())
    count = len(stamps) - 1
    return Bubble(runner.info.name, batch, planning, count, (stamps[-1] - stamps[0]) / 1e3 / count, device_us)


def _is_full(events: list[Event], batch: int) -> bool:
    """Whether a step gave every sequence a token and ended none."""
    deltas = [delta for event in events if isinstance(event, Emitted) for delta in event.deltas]
    return len(deltas) == batch and not any(delta.finish for delta in deltas)
