"""One arm of a comparison, in a front process of its own: ``python -m mqlab.bench.arm ANSWERS_FD``.

The arm arrives pickled on stdin, from the parent and nobody else; then each line on stdin asks for one run, and each line on
ANSWERS_FD answers with what it measured. The end of stdin ends the process, and its engine with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import pickle
import random
import sys
import time
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import IO

import msgspec
import numpy as np
import uvloop

from mqlab.bench import local
from mqlab.bench.affinity import pin
from mqlab.bench.arms import Arm
from mqlab.bench.cpu import CpuReport
from mqlab.bench.reuse import Reuse
from mqlab.client.contract import EngineClient
from mqlab.errors import MqlabError
from mqlab.record.stats import steady_window
from mqlab.topologies import make_client
from mqlab.types import ModelInfo, Request, SamplingParams
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

_LINE_LIMIT = 64 << 20


class Work(msgspec.Struct, frozen=True):
    """One run that is asked for: requests by seed, so that every arm gets the same; ``prefix_len`` tokens of each prompt are alike."""

    seed: int
    num_prompts: int
    input_len: int
    output_len: int
    prefix_len: int = 0


class Run(msgspec.Struct, frozen=True):
    """What one run measured; times in seconds and milliseconds as named.

    Attributes:
        cpu: CPUs used, by process.
        foreign: share of the machine that others used, 0 to 1.
        outputs: a digest of each request's tokens, in the order of the requests.
        reuse: what the engine did not have to compute.
    """

    elapsed_s: float
    output_tokens: int
    output_tokens_per_s: float
    steady_tokens_per_s: float
    ttft_ms: float
    tpot_ms: float
    cpu_us_per_token: float
    cpu: dict[str, float]
    foreign: float
    outputs: list[str]
    reuse: Reuse = Reuse()


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the arm: that it is ready, what a run measured, or why it failed."""

    info: ModelInfo | None = None
    run: Run | None = None
    error: str | None = None


def main() -> None:
    """Serve runs until stdin ends."""
    answers = os.fdopen(int(sys.argv[1]), "wb", buffering=0)
    sys.path[:] = pickle.load(sys.stdin.buffer)
    arm: Arm = pickle.load(sys.stdin.buffer)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(arm, lambda answer: answers.write(msgspec.json.encode(answer) + b"\n")))
        except MqlabError as error:
            answers.write(msgspec.json.encode(Answer(error=str(error))) + b"\n")
    os._exit(0)  # a core that runs here may have threads that nobody waits for


async def _serve(arm: Arm, answer: Callable[[Answer], object]) -> None:
    async with lines_of(sys.stdin.buffer) as lines, make_client(arm.topology, wiring_of(arm), preset=arm.preset, **arm.options) as client:
        pin(arm.cores, {"front": os.getpid(), "engine": client.info.pid})
        generate = local.generating(client, text=arm.detokenize != "none")
        answer(Answer(info=client.info))
        while line := await lines.readline():
            work = msgspec.json.decode(line, type=Work)
            running = asyncio.ensure_future(measure(client, generate, work, arm.concurrency))
            ended = asyncio.ensure_future(_until_end(lines))
            await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if not running.done():
                running.cancel()
                return
            answer(Answer(run=running.result()))


@asynccontextmanager
async def lines_of(pipe: IO[bytes]) -> AsyncIterator[asyncio.StreamReader]:
    """Reads a pipe on the running loop; closes it afterwards."""
    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        yield reader
    finally:
        transport.close()


async def _until_end(lines: asyncio.StreamReader) -> None:
    """Return when the parent is gone; it asks for nothing while a run lasts."""
    while not lines.at_eof():
        await asyncio.sleep(0.2)


def wiring_of(arm: Arm) -> Wiring:
    """What the arm's layout is wired with."""
    wiring = replace(local.wiring_of(arm.engine, arm.codec, arm.timing), output=arm.output)
    if arm.detokenize == "engine":
        wiring = replace(wiring, wraps=(*wiring.wraps, Spec("mqlab.engine.detokenize:DetokenizingCore")))
    return wiring if arm.record is None else wiring.recorded(arm.record)


async def measure(client: EngineClient, generate: local.Generate, work: Work, concurrency: int) -> Run:
    """One run: all requests at once, or ``concurrency`` at a time."""
    requests = make_requests(work, client.info)
    stamps = [array("q") for _ in requests]
    before = Reuse.of(await client.stats())
    with local.watch(client) as cpu:
        starts, outputs = await _run_all(generate, requests, stamps, concurrency)
    return summarise(starts, stamps, outputs, cpu.report, Reuse.of(await client.stats()).since(before))


def make_requests(work: Work, info: ModelInfo) -> list[Request]:
    """Random prompts that depend on the seed alone; greedy, so that every arm must give the same tokens."""
    draw = random.Random(work.seed)
    params = SamplingParams(temperature=0.0, max_tokens=work.output_len, ignore_eos=True)
    prefix = [draw.randrange(info.vocab_size) for _ in range(work.prefix_len)]
    ends = ([draw.randrange(info.vocab_size) for _ in range(work.input_len - work.prefix_len)] for _ in range(work.num_prompts))
    return [Request(f"{work.seed}-{index}", prefix + end, params) for index, end in enumerate(ends)]


async def _run_all(
    generate: local.Generate, requests: list[Request], stamps: list[array[int]], concurrency: int
) -> tuple[list[int], list[str]]:
    """Start stamps and digests of the outputs, in the order of the requests."""
    gate = asyncio.Semaphore(concurrency or len(requests))
    starts = [0] * len(requests)

    async def one(index: int) -> str:
        async with gate:
            starts[index] = time.monotonic_ns()
            tokens = await _consume(generate(requests[index]), stamps[index])
        return hashlib.blake2b(tokens.tobytes(), digest_size=8).hexdigest()

    return starts, await local.all_of([one(index) for index in range(len(requests))])


async def _consume(stream: AsyncGenerator[local.Piece, None], stamps: array[int]) -> array[int]:
    """Read one request to its end: appends (stamp_ns, number of new tokens) pairs, gives all its tokens."""
    tokens: array[int] = array("q")
    async with aclosing(stream) as pieces:
        async for piece in pieces:
            stamps.extend((time.monotonic_ns(), len(piece.tokens)))
            tokens.extend(piece.tokens)
    return tokens


def summarise(starts: list[int], stamps: list[array[int]], outputs: list[str], cpu: CpuReport, reuse: Reuse) -> Run:
    """The figures of a run from its stamps.

    Args:
        starts: when each request was handed over, ns.
        stamps: for each request, (stamp_ns, number of new tokens) pairs.
        outputs: digests.
    """
    events = [np.asarray(one, dtype=np.int64).reshape(-1, 2) for one in stamps]
    first = np.array([one[0, 0] for one in events])
    last = np.array([one[-1, 0] for one in events])
    counts = np.array([one[:, 1].sum() for one in events])
    total = int(counts.sum())
    many = counts > 1
    tpot = (last - first)[many] / (counts - 1)[many] / 1e6
    return Run(
        elapsed_s=cpu.elapsed_s,
        output_tokens=total,
        output_tokens_per_s=total / cpu.elapsed_s,
        steady_tokens_per_s=_steady(np.array(starts), last, np.concatenate(events)),
        ttft_ms=float(np.median(first - np.array(starts)) / 1e6),
        tpot_ms=float(np.median(tpot)) if many.any() else 0.0,
        cpu_us_per_token=sum(cpu.share.values()) * cpu.elapsed_s * 1e6 / total,
        cpu=cpu.share,
        foreign=cpu.foreign,
        outputs=outputs,
        reuse=reuse,
    )


def _steady(starts: np.ndarray, ends: np.ndarray, events: np.ndarray) -> float:
    """Tokens a second while the run was at its full concurrency."""
    begin, end = steady_window(starts, ends)
    inside = (events[:, 0] > begin) & (events[:, 0] <= end)
    return float(events[inside, 1].sum() / max(end - begin, 1) * 1e9)


if __name__ == "__main__":
    main()
