"""``mqlab bench scheduler``: what a step costs beside the model: deciding who runs, and handing out what was drawn.

A core with the real scheduler and a runner that answers at once decodes; ``begin`` and ``finish`` are timed, the wait between them is not.
No request ends, and prompts differ in length, so that every step takes a new block for one request in ``block_size``. Those that
steer (a repetition penalty) bring their whole history along and never run ahead. The core is this process's own: no layout's sockets
are in the numbers. Times are of this thread's processor: nothing here waits, and what other programs do is left out.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from statistics import median

from mqlab.bars import progress_bar
from mqlab.bench.cpu import CpuWatch
from mqlab.bench.output import told
from mqlab.bench.scheduler_options import PROMPT, SchedulerConfig
from mqlab.bench.scheduler_result import KINDS, Row, SchedulerResult
from mqlab.clock import MonotonicClock
from mqlab.config import EngineConfig
from mqlab.engine.blocks import blocks_for
from mqlab.engine.engine_core import EngineCore
from mqlab.plan import InFlight, Plan, SampledTokens
from mqlab.record.metadata import environment
from mqlab.types import ModelInfo, Request, SamplingParams

_PARAMS = {
    "plain": SamplingParams(max_tokens=None, ignore_eos=True),
    "steering": SamplingParams(max_tokens=None, ignore_eos=True, repetition_penalty=1.1),
}


def main(engine: EngineConfig, config: SchedulerConfig) -> int:
    """``scheduler``, with its progress and result printed and, where asked for, the result written to a file.

    Raises:
        ConfigError: the file cannot be written.
    """
    told(lambda: scheduler(engine, config), config.output_json)
    return 0


def scheduler(engine: EngineConfig, config: SchedulerConfig) -> SchedulerResult:
    """Run the benchmark.

    Args:
        engine: policies and block size; who runs at most is the benchmark's own to say.
    """
    cores = [TimedCore(engine, config, kind, *size) for kind in KINDS for size in config.sizes]
    with CpuWatch({}) as cpu:
        rounds = config.num_iters_warmup + config.num_iters
        for number in progress_bar("rounds", iterable=range(rounds), unit="round"):
            # Each round begins with another, so that none always follows the same.
            for core in cores[number % len(cores) :] + cores[: number % len(cores)]:
                core.run(config.steps, counts=number >= config.num_iters_warmup)
    return SchedulerResult(
        rows=tuple(core.row for core in cores),
        workload=config.as_record(),
        engine=asdict(engine),
        cpu=cpu.report,
        meta=environment(),
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """A step that is done: a token for each that samples."""

    sampled: SampledTokens

    def wait(self) -> SampledTokens:
        return self.sampled


class _AtOnce:
    """A runner without a device."""

    def __init__(self, info: ModelInfo) -> None:
        self.info = info

    def launch(self, plan: Plan) -> InFlight:
        return _Answer(SampledTokens(tuple([(7,) * chunk.rounds for chunk in plan.chunks if chunk.samples]), plan.rounds))

    def check(self) -> None:
        """There is nothing that could be missing."""

    def rest(self) -> None:
        """There is no KV memory."""

    def resume(self) -> None:
        """There is no KV memory."""

    def close(self) -> None:
        """There is nothing to free."""


@dataclass
class _Times:
    schedule_us: list[float] = field(default_factory=list)
    output_us: list[float] = field(default_factory=list)


class TimedCore:
    """A core with so many requests running and waiting, whose steps are timed."""

    def __init__(self, engine: EngineConfig, config: SchedulerConfig, kind: str, running: int, waiting: int) -> None:
        self._kind, self._running, self._waiting = kind, running, waiting
        self._times = _Times()
        self._core = EngineCore(_AtOnce(_info(engine, config, running)), _settings(engine, running), MonotonicClock())
        for i in range(running + waiting):
            length = PROMPT - engine.block_size // 2 + i % engine.block_size
            self._core.add(Request(f"r{i}", [i % 1000 + 3] * length, _PARAMS[kind]))
        self.run(1, counts=False)  # brings the prompts in

    def run(self, steps: int, *, counts: bool) -> None:
        """So many steps."""
        core, times = self._core, self._times if counts else _Times()
        for _ in range(steps):
            begin = time.thread_time_ns()
            flight = core.begin()
            launched = time.thread_time_ns()
            sampled = flight.wait()
            back = time.thread_time_ns()
            core.finish(sampled)
            times.output_us.append((time.thread_time_ns() - back) / 1000)
            times.schedule_us.append((launched - begin) / 1000)

    @property
    def row(self) -> Row:
        """The medians of what was timed."""
        return Row(self._kind, self._running, self._waiting, median(self._times.schedule_us), median(self._times.output_us))


def _info(engine: EngineConfig, config: SchedulerConfig, running: int) -> ModelInfo:
    """A model with room for all that run, to the end of the benchmark."""
    length = config.tokens * engine.num_scheduler_steps + engine.block_size
    return ModelInfo(
        name="at-once",
        vocab_size=49152,
        max_model_len=length,
        max_prompt_len=length - 1,
        eos_token_ids=(2,),
        num_blocks=running * blocks_for(length, engine.block_size),
        block_size=engine.block_size,
    )


def _settings(engine: EngineConfig, running: int) -> EngineConfig:
    return replace(engine, max_num_seqs=running, max_num_batched_tokens=2 * PROMPT * running)
