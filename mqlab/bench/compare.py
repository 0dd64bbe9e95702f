"""``mqlab compare``: arms that differ in one setting, each in a front process of its own, run in turns (A B C, B C A, C A B, …).

Every arm gets the same greedy requests in a round, fresh ones every round (so a prefix cache has only what one
round's prompts share: ``prefix_len``), and must give the same tokens. All engines are up before
the first run and idle while another arm runs, so what changes over time changes for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import msgspec

from mqlab.bars import progress_bar
from mqlab.bench.affinity import parse_cores
from mqlab.bench.arm import Answer, lines_of
from mqlab.bench.arm_run import Run
from mqlab.bench.arm_work import Work
from mqlab.bench.arms import CONTROL, Arm, make_arms
from mqlab.bench.compare_options import CompareConfig
from mqlab.bench.comparison import Comparison
from mqlab.bench.lengths import longest
from mqlab.bench.local import check_fits, folder_of
from mqlab.bench.output import told
from mqlab.client.sync import LoopThread
from mqlab.config import EngineConfig, Timing
from mqlab.errors import BenchError, EngineStartError, refusal_of
from mqlab.notes import notes_of
from mqlab.probes.recording import begin_recording
from mqlab.record.metadata import environment, write_meta
from mqlab.types import ModelInfo

_END_S = 10.0
_TAIL_BYTES = 4000


def compare(engine: EngineConfig, config: CompareConfig, timing: Timing | None = None, *, progress: bool = True) -> Comparison:
    """Run a comparison. Blocks; an interrupt ends every arm.

    Raises:
        ConfigError: nothing to compare, or what an arm refuses, as ModelError is. EngineStartError: an arm never became ready.
        BenchError: an arm failed while it ran. Nothing is left running then.
    """
    return compare_arms(make_arms(engine, config, timing or Timing()), config, progress=progress)


def compare_arms(plain: Sequence[Arm], config: CompareConfig, *, progress: bool = True, probes: bool = True) -> Comparison:
    """Run arms of any kind against each other: the first is the baseline. Blocks; an interrupt ends every arm.

    Args:
        config: the workload, the rounds, and what is measured; its axes are the arms' own.
        probes: let the light probes record.

    Raises:
        ConfigError, ModelError, EngineStartError, BenchError: as ``compare``.
    """
    for arm in plain:
        _check(arm)
    arms = _all_arms(plain, control=config.control) if probes else list(plain)
    thread = LoopThread("mqlab-compare")
    try:
        seed = secrets.randbits(31)
        runs = thread.run(_run(arms, config, seed, progress))
    finally:
        thread.close()
    meta = {"seed": seed, "engine": asdict(plain[0].engine), "arms": [arm.as_record() for arm in arms], **environment()}
    return Comparison([arm.label for arm in arms], runs, config, meta)


def main(engine: EngineConfig, config: CompareConfig, timing: Timing) -> int:
    """Run a comparison, print it and, where asked for, write it to a file.

    Returns:
        0; 3 when the comparison is void.

    Raises:
        as ``compare``; ConfigError as well for a file that cannot be written.
    """
    result = told(lambda: compare(engine, config, timing), config.output_json, notes_of(engine))
    return 3 if result.void else 0


def _check(arm: Arm) -> None:
    """Find out before any engine starts what would keep this arm's from starting; a model that is not here is fetched."""
    if arm.cores is not None:
        parse_cores(arm.cores)
    folder_of(arm.engine)


def _all_arms(plain: Sequence[Arm], *, control: bool) -> list[Arm]:
    """The arms, each recorded by the light probes in a folder of its own, and behind them the baseline without probes."""
    folder = begin_recording("compare")
    if folder is None:
        return list(plain)
    arms = [replace(arm, record=_recording(folder, number, arm)) for number, arm in enumerate(plain)]
    return [*arms, replace(plain[0], label=f"{plain[0].label} {CONTROL}")] if control else arms


def _recording(folder: Path, number: int, arm: Arm) -> Path:
    own = folder / f"arm-{number}"
    own.mkdir()
    write_meta(own, run=f"{folder.name} {arm.label}", arm=arm.as_record(), engine=asdict(arm.engine))
    return own


async def _run(arms: Sequence[Arm], config: CompareConfig, seed: int, progress: bool) -> list[list[Run]]:
    """Runs by arm, in the order of the rounds."""
    async with contextlib.AsyncExitStack() as stack:
        processes = [] if config.alone else await _all_started(stack, arms, config, seed, progress)
        runs: list[list[Run]] = [[] for _ in arms]
        with progress_bar("comparing", total=len(arms) * config.rounds, unit="run", shown=progress) as bar:
            for round_number in range(config.rounds):
                for place in range(len(arms)):
                    # Each round begins with another arm, so that none always runs behind the same one.
                    number = (place + round_number) % len(arms)
                    arm, work = arms[number], _work(config, arms[number], seed + 1 + round_number)
                    bar.set_postfix_str(arm.label)
                    runs[number].append(await (_run_alone(arm, config, seed, work) if config.alone else processes[number].run(work)))
                    bar.update()
        for process in processes:
            process.dismiss()
        return runs


async def _all_started(
    stack: contextlib.AsyncExitStack, arms: Sequence[Arm], config: CompareConfig, seed: int, progress: bool
) -> list[ArmProcess]:
    """Every arm's process, up and warm."""
    processes = []
    with progress_bar("starting", total=len(arms), unit="arm", shown=progress) as bar:
        for arm in arms:
            bar.set_postfix_str(arm.label)
            processes.append(await _started(stack, arm, config))
            bar.update()
    for process, arm in zip(processes, arms, strict=True):
        await process.run(_warm_up(config, arm, seed))
    return processes


async def _run_alone(arm: Arm, config: CompareConfig, seed: int, work: Work) -> Run:
    """One run in a process that lives for it."""
    async with contextlib.AsyncExitStack() as stack:
        process = await _started(stack, arm, config)
        await process.run(_warm_up(config, arm, seed))
        return await process.run(work)


def _work(config: CompareConfig, arm: Arm, seed: int) -> Work:
    return Work(seed, config.num_prompts, *config.mean_lengths, config.prefix_len, config.lengths, arm.rate)


def _warm_up(config: CompareConfig, arm: Arm, seed: int) -> Work:
    work = _work(config, arm, seed)
    few = {"num_prompts": min(8, work.num_prompts), "output_len": min(8, work.output_len)}
    return msgspec.structs.replace(work, **few, lengths="fixed", rate=0.0)


async def _started(stack: contextlib.AsyncExitStack, arm: Arm, config: CompareConfig) -> ArmProcess:
    process = await stack.enter_async_context(launched(arm))
    check_fits(*longest(config.lengths, *config.mean_lengths), await process.ready())
    return process


@contextlib.asynccontextmanager
async def launched(arm: Arm) -> AsyncIterator[ArmProcess]:
    """An arm's process, ended on the way out."""
    reading, writing = os.pipe()
    # A pipe of its own for the answers: whatever the interpreter or a library prints, it is not one of them.
    with tempfile.TemporaryFile() as log, os.fdopen(reading, "rb", buffering=0) as file:
        try:
            process = await _spawned(writing, log)
        finally:
            os.close(writing)
        try:
            async with lines_of(file) as answers:
                yield ArmProcess(arm, process, answers, log)
        finally:
            await _end(process)


async def _spawned(answers: int, log: IO[bytes]) -> asyncio.subprocess.Process:
    """A new process. Cancelled midway, it is ended all the same: the loop may close at once, and would leave a child that runs."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "mqlab.bench.arm", str(answers)),
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(answers,),
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _whole(_undone(starting))
        raise


async def _undone(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    process = await starting
    process.kill()
    await _end(process)


async def _whole(work: Coroutine[Any, Any, None]) -> None:
    """Run something to its end, however often this is cancelled meanwhile. What it raises is dropped: a cancellation is told already."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class ArmProcess:
    """The parent's end of an arm.

    Args:
        answers: its lines.
        log: the file that its stdout and stderr go to.
    """

    def __init__(self, arm: Arm, process: asyncio.subprocess.Process, answers: asyncio.StreamReader, log: IO[bytes]) -> None:
        self.label = arm.label
        self._arm = arm
        self._process = process
        self._answers = answers
        self._log = log

    async def ready(self) -> ModelInfo:
        """Hand it what to run, and return when its engine is up.

        Raises:
            ConfigError, ModelError: its engine refuses. EngineStartError: it never came up.
        """
        await self._write(pickle.dumps(sys.path) + pickle.dumps(self._arm))
        answer = await self._answer()
        if answer.info is not None:
            return answer.info
        cause = f"arm {self.label!r}: {answer.error or self._end()}"
        if answer.refusal is not None:
            raise refusal_of(answer.refusal, cause)
        raise EngineStartError(cause, None, "" if answer.error else self._tail())

    async def run(self, work: Work) -> Run:
        """One run.

        Raises:
            BenchError: it failed.
        """
        await self._write(msgspec.json.encode(work) + b"\n")
        answer = await self._answer()
        if answer.run is None:
            why = answer.error or f"{self._end()}\n{self._tail()}".strip()
            raise BenchError(f"arm {self.label!r} failed while it ran: {why}")
        return answer.run

    def dismiss(self) -> None:
        """Let it end, without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it is gone; the answer that does not come tells
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    async def _answer(self) -> Answer:
        line = await self._answers.readline()
        if line:
            return msgspec.json.decode(line, type=Answer)
        await self._process.wait()
        return Answer()

    def _end(self) -> str:
        code = self._process.returncode
        if code == -signal.SIGKILL:
            return "its process was killed; where nobody did that, memory ran out: compare fewer arms, or lower --kv-cache-gb"
        return f"its process ended with exit code {code}"

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-_TAIL_BYTES:].decode(errors="replace").strip()
