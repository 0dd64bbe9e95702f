"""One arm of a comparison, in a front process of its own: ``python -m mqlab.bench.arm ANSWERS_FD``.

The arm arrives pickled on stdin, from the parent and nobody else; then each line on stdin asks for one run, and each line on
ANSWERS_FD answers with what it measured. The end of stdin ends the process, and its engine with it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import IO

import msgspec
import uvloop

from mqlab.bench import local
from mqlab.bench.affinity import pin
from mqlab.bench.arm_client import measure
from mqlab.bench.arm_run import Run
from mqlab.bench.arm_work import Work
from mqlab.bench.arms import Arm
from mqlab.client.base import BaseClient
from mqlab.errors import REFUSALS, MqlabError, RefusalKind, refusal_kind
from mqlab.topologies import make_client
from mqlab.types import ModelInfo
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

_LINE_LIMIT = 64 << 20


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the arm: that it is ready, what a run measured, or why it failed; ``refusal`` where nothing is broken."""

    info: ModelInfo | None = None
    run: Run | None = None
    error: str | None = None
    refusal: RefusalKind | None = None


Tell = Callable[[Answer], object]
Measure = Callable[[Work], Awaitable[Run]]


def main() -> None:
    """Serve runs until stdin ends."""
    answers = os.fdopen(int(sys.argv[1]), "wb", buffering=0)

    def answer(one: Answer) -> None:
        answers.write(msgspec.json.encode(one) + b"\n")

    sys.path[:] = pickle.load(sys.stdin.buffer)
    arm: Arm = pickle.load(sys.stdin.buffer)
    try:
        if arm.is_sync:
            _serve_plainly(arm, answer)
        else:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(arm, answer))
    except REFUSALS as error:
        answer(Answer(error=str(error), refusal=refusal_kind(error)))
    except MqlabError as error:
        answer(Answer(error=str(error)))
    os._exit(0)  # a core that runs here may have threads that nobody waits for


def _serve_plainly(arm: Arm, answer: Tell) -> None:
    from mqlab.bench import arm_sync

    core = wiring_of(arm).build_core()
    pin(arm.cores, {"front": os.getpid(), "engine": os.getpid()})
    answer(Answer(info=core.info))
    for line in sys.stdin.buffer:
        work = msgspec.json.decode(line, type=Work)
        answer(Answer(run=arm_sync.measure(core, work, arm.concurrency, partial(arm_sync.parent_listens, sys.stdin.buffer))))


async def _serve(arm: Arm, answer: Tell) -> None:
    async with lines_of(sys.stdin.buffer) as lines, make_client(arm.topology, wiring_of(arm), preset=arm.preset, **arm.options) as client:
        pin(arm.cores, client.pids)
        async with _measuring(arm, client) as run:
            answer(Answer(info=client.info))
            while line := await lines.readline():
                running = asyncio.ensure_future(run(msgspec.json.decode(line, type=Work)))
                ended = asyncio.ensure_future(_until_end(lines))
                await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
                if not running.done():
                    running.cancel()
                    return
                answer(Answer(run=running.result()))


def _measuring(arm: Arm, client: BaseClient) -> AbstractAsyncContextManager[Measure]:
    if arm.http:
        from mqlab.bench.arm_http import over_http

        return over_http(client, arm.concurrency)
    return _headless(arm, client)


@asynccontextmanager
async def _headless(arm: Arm, client: BaseClient) -> AsyncIterator[Measure]:
    text = arm.detokenize != "none"
    generate = local.generating(client, text=text)
    yield lambda work: measure(client, generate, work, arm.concurrency, text=text)


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
    """What the arm's layout is wired with. Where there is no front the engine detokenises, whoever was named."""
    wiring = replace(local.wiring_of(arm.engine, arm.codec, arm.timing), output=arm.output)
    if arm.detokenize == "engine" or (arm.is_sync and arm.detokenize != "none"):
        wiring = replace(wiring, wraps=(*wiring.wraps, Spec("mqlab.engine.detokenize:DetokenizingCore")))
    return wiring if arm.record is None else wiring.recorded(arm.record)


if __name__ == "__main__":
    main()
