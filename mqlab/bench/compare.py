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
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

import msgspec
from tqdm import tqdm

from mqlab.bars import progress_bar
from mqlab.bench.affinity import parse_cores
from mqlab.bench.arm import Answer, Run, Work, lines_of
from mqlab.bench.arms import CONTROL, Arm, make_arms
from mqlab.bench.compare_options import CompareConfig
from mqlab.bench.comparison import Comparison
from mqlab.bench.local import ECHO, check_fits
from mqlab.bench.output import check_output, tell, write_output
from mqlab.client.sync import LoopThread
from mqlab.config import EngineConfig, Settings, Timing
from mqlab.errors import BenchError, EngineStartError
from mqlab.models.resolve import resolve
from mqlab.probes.recording import begin_recording
from mqlab.record.metadata import environment, write_meta
from mqlab.types import ModelInfo

_END_S = 10.0
_TAIL_BYTES = 4000


def compare(engine: EngineConfig, config: CompareConfig, timing: Timing | None = None, *, progress: bool = True) -> Comparison:
    """Run a comparison. Blocks; an interrupt ends every arm.

    Raises:
        ConfigError: nothing to compare, or a setting that an arm refuses. EngineStartError: an arm never became ready.
        BenchError: an arm failed while it ran. Nothing is left running then.
    """
    plain = make_arms(engine, config, timing or Timing())
    for arm in plain:
        _check(arm)
    arms = _all_arms(plain, control=config.control)
    thread = LoopThread("mqlab-compare")
    try:
        seed = secrets.randbits(31)
        runs = thread.run(_run(arms, config, seed, progress))
    finally:
        thread.close()
    meta = {"seed": seed, "engine": asdict(engine), "arms": [arm.as_record() for arm in arms], **environment()}
    return Comparison([arm.label for arm in arms], runs, config, meta)


def main(engine: EngineConfig, config: CompareConfig, timing: Timing) -> int:
    """Run a comparison, print it and, where asked for, write it to a file.

    Returns:
        0; 3 when the comparison is void.

    Raises:
        as ``compare``; ConfigError as well for a file that cannot be written.
    """
    tell(engine.notes)
    check_output(config.output_json)
    result = compare(engine, config, timing)
    print(result)
    write_output(config.output_json, result.as_record())
    return 3 if result.void else 0


def _check(arm: Arm) -> None:
    """Find out before any engine starts what would keep this arm's from starting; a model that is not here is fetched."""
    if arm.cores is not None:
        parse_cores(arm.cores)
    if arm.engine.model != ECHO:
        resolve(arm.engine.model, Settings.read().cache_dir, load_format=arm.engine.load_format)


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
        with progress_bar("starting", total=len(arms), unit="arm", shown=progress) as bar:
            processes = [await _started(stack, arm, config, bar) for arm in arms]
        for process in processes:
            await process.run(_work(config, seed, min(8, config.num_prompts), min(8, config.output_len)))
        runs: list[list[Run]] = [[] for _ in arms]
        with progress_bar("comparing", total=len(arms) * config.rounds, unit="run", shown=progress) as bar:
            for round_number in range(config.rounds):
                work = _work(config, seed + 1 + round_number, config.num_prompts, config.output_len)
                for place in range(len(arms)):
                    # Each round begins with another arm, so that none always runs behind the same one.
                    number = (place + round_number) % len(arms)
                    bar.set_postfix_str(processes[number].label)
                    runs[number].append(await processes[number].run(work))
                    bar.update()
        for process in processes:
            process.dismiss()
        return runs


def _work(config: CompareConfig, seed: int, num_prompts: int, output_len: int) -> Work:
    return Work(seed, num_prompts, config.input_len, output_len, config.prefix_len)


async def _started(stack: contextlib.AsyncExitStack, arm: Arm, config: CompareConfig, bar: tqdm) -> ArmProcess:
    bar.set_postfix_str(arm.label)
    process = await stack.enter_async_context(_launched(arm))
    check_fits(config.input_len, config.output_len, await process.ready())
    bar.update()
    return process


@contextlib.asynccontextmanager
async def _launched(arm: Arm) -> AsyncIterator[ArmProcess]:
    """An arm's process, ended on the way out."""
    reading, writing = os.pipe()
    # A pipe of its own for the answers: whatever the interpreter or a library prints, it is not one of them.
    with tempfile.TemporaryFile() as log, os.fdopen(reading, "rb", buffering=0) as file:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "mqlab.bench.arm", str(writing)),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(writing,),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        try:
            async with lines_of(file) as answers:
                yield ArmProcess(arm, process, answers, log)
        finally:
            await _end(process)


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
            EngineStartError: it never came up.
        """
        await self._write(pickle.dumps(sys.path) + pickle.dumps(self._arm))
        answer = await self._answer()
        if answer.info is None:
            raise EngineStartError(f"arm {self.label!r}: {answer.error or self._end()}", None, "" if answer.error else self._tail())
        return answer.info

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
