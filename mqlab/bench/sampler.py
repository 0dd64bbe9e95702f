"""``mqlab bench sampler``: what it costs to choose tokens, by what requests ask for; and of all kinds mixed, over greedy ones.

The logits are normally distributed with deviation 3.5, which is about as peaked as what the default model makes of English: the
likeliest token has a sixth of the probability, and 0.9 of it lie on some 700 tokens. Every call gets fresh logits, written just before,
as by a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from mqlab.bars import progress_bar
from mqlab.bench.cpu import CpuWatch
from mqlab.bench.output import told
from mqlab.bench.sampler_mix import KINDS, batch_of
from mqlab.bench.sampler_options import SamplerConfig
from mqlab.bench.sampler_result import SamplerResult
from mqlab.record.metadata import environment

_DEVIATION = 3.5
_STEPS = 5


def main(config: SamplerConfig) -> int:
    """``sampler``, with its progress and result printed and, where asked for, the result written to a file.

    Raises:
        ConfigError: the file cannot be written, or the model does not fit. ModelError.
    """
    told(lambda: sampler(config), config.output_json)
    return 0


def sampler(config: SamplerConfig) -> SamplerResult:
    """Run the benchmark."""
    from mqlab.model.attention import use_threads
    from mqlab.model.load import physical_cores

    config = replace(config, num_threads=config.num_threads or physical_cores())
    use_threads(config.num_threads)
    with CpuWatch({}) as cpu:
        medians = _sampler_us(config)
    return SamplerResult(
        median_us=medians,
        step_us=None if config.model is None else _step_us(config, config.model),
        workload=config.as_record() | {"deviation": _DEVIATION},
        kinds={name: kind.what for name, kind in KINDS.items()} | {"mixed": "all of these in turns"},
        cpu=cpu.report,
        meta=environment(),
    )


def _sampler_us(config: SamplerConfig) -> dict[str, float]:
    """Median µs of a call, by kind of batch."""
    from mqlab.model.noise import normal_logits
    from mqlab.model.sampler import Sampler

    logits = normal_logits(config.batch_size, config.vocab_size, _DEVIATION, config.seed)
    work, sample = logits.clone(), Sampler()
    batches = {name: batch_of([name], config) for name in KINDS} | {"mixed": batch_of([*KINDS], config)}
    taken: dict[str, list[float]] = {name: [] for name in batches}
    names = list(batches)
    rounds = range(config.num_iters_warmup + config.num_iters)
    for number in progress_bar("rounds", iterable=rounds, unit="round"):
        # Each round begins with another, so that none always follows the same.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            work.copy_(logits)
            taken[name].append(_timed(lambda chunks=batches[name]: sample(work, chunks)))
    return {name: median(times[config.num_iters_warmup :]) for name, times in taken.items()}


def _step_us(config: SamplerConfig, model: str) -> float:
    """Median µs of a decode step of a model for a batch of sequences of a few tokens, its sampler left out."""
    from mqlab.config import EngineConfig
    from mqlab.model.load import build
    from mqlab.model.runner import TorchRunner
    from mqlab.model.sampler import Sampled
    from mqlab.plan import Chunk, Plan
    from mqlab.types import SamplingParams

    engine = EngineConfig(model=model, device="cpu", num_threads=config.num_threads, num_kv_blocks=config.batch_size)
    runner = build(engine)
    assert isinstance(runner, TorchRunner)
    greedy = SamplingParams(temperature=0)

    runner.sampler = lambda _, chunks: Sampled((0,) * len(chunks))
    chunks = [Chunk(f"r{i}", (0,), engine.block_size - 1, (i,), True, greedy, 0) for i in range(config.batch_size)]
    plan = Plan(tuple(chunks))
    run = runner.run
    times = [_timed(lambda: run(plan)) for _ in range(1 + _STEPS)]
    runner.close()
    return median(times[1:])


def _timed(call: Callable[[], object]) -> float:
    """µs."""
    begin = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin) / 1000
