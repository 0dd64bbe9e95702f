"""``mqlab bench calibration``: does the simulated device keep the real engine's time?

One layout runs twice, once with the real engine and once with ``sim:MODEL@DEVICE``, and both get the same requests in turns: alone and
in batches, short prompts and longer ones, all at once and as they arrive. Tokens a second and time per token must agree within a tenth.

The tokens themselves differ by nature, for the simulated device has no weights, so nothing here compares them, as ``mqlab compare``
would; that every request has got its full number of tokens is checked instead. Both have as many KV blocks as the real engine, and no
end token ends a request, so the scheduler of either sees the same lengths.

What cannot agree is what computing takes from others: see ``mqlab calibrate`` for why both should have a core to spare.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from mqlab.bars import progress_bar
from mqlab.bench.agreement_options import WORKLOADS, AgreementConfig, Workload
from mqlab.bench.agreement_result import Agreement, Rounds
from mqlab.bench.arm_run import Run
from mqlab.bench.arm_work import Work
from mqlab.bench.arms import Arm
from mqlab.bench.compare import ArmProcess, launched
from mqlab.bench.lengths import draw_lengths, longest
from mqlab.bench.local import check_fits, folder_of
from mqlab.bench.output import told
from mqlab.client.sync import LoopThread
from mqlab.config import EngineConfig, Timing
from mqlab.errors import BenchError, ConfigError
from mqlab.models.echoed import is_echo
from mqlab.models.simulated import PREFIX, is_simulated
from mqlab.notes import notes_of
from mqlab.record.metadata import environment
from mqlab.topologies import layout_options
from mqlab.types import ModelInfo

Arms = tuple[ArmProcess, ArmProcess]
"""The real engine's, and the simulated device's."""


def main(engine: EngineConfig, config: AgreementConfig, timing: Timing) -> int:
    """``agreement``, with its progress and result printed and, where asked for, the result written to a file.

    Returns:
        0; 3 when they do not agree, or nothing can be said.

    Raises:
        as ``agreement``; ConfigError as well for a file that cannot be written.
    """
    result = told(lambda: agreement(engine, config, timing), config.output_json, notes_of(engine))
    return 0 if result.agrees else 3


def agreement(engine: EngineConfig, config: AgreementConfig, timing: Timing | None = None) -> Agreement:
    """Run the benchmark. Blocks; an interrupt ends both engines.

    Args:
        engine: the real one.

    Raises:
        ConfigError: a model that is not real, or a setting that a layout refuses. ModelError: model or device cannot be found.
        EngineStartError: one of the two never became ready. BenchError: one failed while it ran, or gave too few tokens.
    """
    if is_echo(engine.model) or is_simulated(engine.model):
        raise ConfigError(f"--model={engine.model!r} is no real engine to compare a simulated one with; name a model with weights")
    layout_options(config.topology, config.preset)
    simulated = replace(engine, model=f"{PREFIX}{engine.model}@{config.device}")
    for one in (engine, simulated):
        folder_of(one)  # finds out before anything starts whether it is here
    arms = [_arm(name, one, config, timing or Timing()) for name, one in (("real", engine), ("simulated", simulated))]
    seed = secrets.randbits(31)
    thread = LoopThread("mqlab-agreement")
    try:
        rounds = thread.run(_run(arms, config, seed))
    finally:
        thread.close()
    return Agreement(rounds, config, {"seed": seed, "engine": asdict(engine), **environment()})


def _arm(label: str, engine: EngineConfig, config: AgreementConfig, timing: Timing) -> Arm:
    plain = {"codec": "msgpack", "output": "delta", "detokenize": "none", "concurrency": 0}
    return Arm(label=label, engine=engine, topology=config.topology, preset=config.preset, timing=timing, **plain)


async def _run(arms: Sequence[Arm], config: AgreementConfig, seed: int) -> list[Rounds]:
    """By workload."""
    real, simulated = arms
    async with contextlib.AsyncExitStack() as stack:
        with progress_bar("starting", total=2, unit="engine") as bar:
            first, info = await _started(stack, real)
            bar.update()
            # As many blocks as the real one has: else one would preempt or queue where the other does not.
            second, _ = await _started(stack, replace(simulated, engine=replace(simulated.engine, num_kv_blocks=info.num_blocks)))
            bar.update()
        works = _works(config)
        for workload in works:
            check_fits(*longest(workload.lengths, workload.input_len, workload.output_len), info)
        rounds = await _all_rounds((first, second), works, config, seed)
        first.dismiss()
        second.dismiss()
        return rounds


async def _started(stack: contextlib.AsyncExitStack, arm: Arm) -> tuple[ArmProcess, ModelInfo]:
    process = await stack.enter_async_context(launched(arm))
    return process, await process.ready()


def _works(config: AgreementConfig) -> list[Workload]:
    return [replace(one, output_len=max(2, round(one.output_len * config.scale))) for one in WORKLOADS]


async def _all_rounds(arms: Arms, works: Sequence[Workload], config: AgreementConfig, seed: int) -> list[Rounds]:
    found = [Rounds(workload, [], []) for workload in works]
    for arm in arms:
        await arm.run(_work(works[0], seed))  # warms up, and does not count
    total = 2 * config.taken_rounds * len(works)
    with progress_bar("real and simulated", total=total, unit="run") as bar:
        for number in range(config.taken_rounds):
            for rounds in found:
                work = _work(rounds.workload, seed + 1 + number)
                for place in _turns(number):
                    bar.set_postfix_str(f"{arms[place].label}, {rounds.workload.name}")
                    (rounds.real, rounds.simulated)[place].append(await _checked(arms[place], work))
                    bar.update()
    return found


def _turns(number: int) -> Iterator[int]:
    """Each round begins with the other."""
    yield number % 2
    yield 1 - number % 2


async def _checked(arm: ArmProcess, work: Work) -> Run:
    run = await arm.run(work)
    _, wanted = draw_lengths(work.lengths, work.num_prompts, work.input_len, work.output_len, work.seed)
    if run.output_tokens != sum(wanted):
        raise BenchError(
            f"{arm.label!r} gave {run.output_tokens} tokens where {work.num_prompts} requests wanted {sum(wanted)}: it does other work "
            "than it was asked for, so nothing can be said; check its log"
        )
    return run


def _work(workload: Workload, seed: int) -> Work:
    one = workload
    return Work(seed, one.num_prompts, one.input_len, one.output_len, lengths=one.lengths, rate=one.rate)
