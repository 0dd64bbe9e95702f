"""What the layouts are known to have got wrong, as they were: health checks that lie, pipes that block, tokens out of order or late."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from mqlab.client.base import BaseClient
from mqlab.client.queue import Queue
from mqlab.contract import abort, close, death, requests
from mqlab.contract.rig import FAST, Check, Rig, Stopwatch, ask, assert_serves, begin, echo_of, run, settled
from mqlab.contract.waiting import until_sync
from mqlab.errors import EngineDeadError
from mqlab.topologies import make_client
from mqlab.types import Delta, SamplingParams

# --- the message queue's health checks, all with one limit: a heartbeat or an answer within it, a step within three times as long

NO_ANSWER, NO_BEAT, NO_TURN, OLD_STAMP = "not answered a probe", "given no heartbeat", "has not turned", "step_limit"

OVERRUN = {"slow_add": 0.09}
"""Of twenty requests at once: taking them in keeps the engine for two seconds."""

HOG = {"hang_step": 3, "hang_seconds": 1.8, "hold_gil": True}
HANG = {"hang_step": 3}


async def verdict(health: str, limit: float, faults: dict[str, Any]) -> str:
    """Why an engine was declared dead under twenty requests at once; empty when it answered all and still serves."""
    rig = Rig(f"mq-{health}", partial(make_client, "mq", health=health, health_timeout=limit, beat_interval=limit / 20))
    async with rig.client(timing=replace(FAST, step_limit=3 * limit), **faults) as client:
        uses = [run(client, ask(f"r{i}", params=SamplingParams(max_tokens=6))) for i in range(20)]
        answers = await asyncio.gather(*uses, return_exceptions=True)
        if isinstance(error := answers[0], EngineDeadError):
            return error.cause
        assert {answer[1] for answer in answers if not isinstance(answer, BaseException)} == {"length"}
        await assert_serves(client)
    return ""


@pytest.mark.parametrize(
    ("faults", "limit", "expected"),
    [
        (OVERRUN, 1.0, {"probe": NO_ANSWER, "beat": "", "pid": "", "stamp": ""}),
        (HOG, 1.0, {"probe": NO_ANSWER, "beat": NO_BEAT, "pid": "", "stamp": ""}),
        (HANG, 0.3, {"probe": NO_ANSWER, "beat": NO_TURN, "stamp": OLD_STAMP}),
    ],
    ids=["overrun", "hog", "hang"],
)
async def test_who_is_right_about_an_engine(faults: dict[str, Any], limit: float, expected: dict[str, str]) -> None:
    """An overrun engine is well, and so is one that holds the interpreter lock for a while; one that hangs is not.

    That ``pid`` does not see a hang is tested with the layout's own tests.
    """
    async with asyncio.timeout(30):
        causes = await asyncio.gather(*(verdict(health, limit, faults) for health in expected))
    for (health, word), cause in zip(expected.items(), causes, strict=True):
        assert bool(word) == bool(cause), f"{health}: {cause}"
        assert word in cause


# --- the message queue's pipes

STEPS = 4000


async def starve(client: BaseClient) -> list[asyncio.Task[Any]]:
    """Eight requests that run, from which nothing is read for as long as the caller does not let the loop turn."""
    params = SamplingParams(max_tokens=STEPS, ignore_eos=True)
    readers = [asyncio.create_task(run(client, ask(f"{i}-{'x' * 200}", params=params))) for i in range(8)]
    await asyncio.sleep(0)
    until_sync(lambda: client.glance().running == 8)
    return readers


class Standstill:
    """True once the engine has made no step for half a second."""

    def __init__(self, client: BaseClient) -> None:
        self._client = client
        self._steps, self._since = 0, Stopwatch()

    def __call__(self) -> bool:
        steps = self._client.glance().steps
        if steps != self._steps:
            self._steps, self._since = steps, Stopwatch()
        return self._since.seconds > 0.5


async def test_a_front_that_does_not_read_blocks_the_engine_at_the_high_water_mark() -> None:
    async with make_mq(hwm=1000) as client:
        readers = await starve(client)
        until_sync(Standstill(client), timeout=30)
        assert 2000 <= client.glance().steps < STEPS, "a thousand messages at either end, and what the kernel holds"
        assert {finish for _, finish in await asyncio.gather(*readers)} == {"length"}, "it goes on when the front reads"


async def test_without_a_high_water_mark_it_runs_on() -> None:
    async with make_mq(hwm=0) as client:
        readers = await starve(client)
        until_sync(lambda: client.glance().steps >= STEPS, timeout=30)
        assert {finish for _, finish in await asyncio.gather(*readers)} == {"length"}


def make_mq(**options: Any) -> BaseClient:
    """A message-queue client over an echo core."""
    return Rig("mq", partial(make_client, "mq", **options)).client()


async def disorder(client: BaseClient) -> int:
    """How many of sixteen streams were not given their tokens as they were made."""
    params = SamplingParams(max_tokens=150, ignore_eos=True)
    asked = [ask(f"r{i}", prompt=tuple(range(3 + i, 153 + i)), params=params) for i in range(16)]
    answers = await asyncio.gather(*(run(client, request) for request in asked))
    return sum(tokens != echo_of(request, 150) for (tokens, _), request in zip(answers, asked, strict=True))


async def test_two_output_loops_bring_tokens_out_of_order() -> None:
    async with make_mq(output_loops=2) as client, asyncio.timeout(60):
        while not await disorder(client):
            await asyncio.sleep(0)


async def test_one_output_loop_keeps_their_order() -> None:
    async with make_mq(output_loops=1) as client:
        assert [await disorder(client) for _ in range(5)] == [0] * 5


# --- puts from another thread


async def test_a_put_from_another_thread_wakes_no_sleeping_loop() -> None:
    """The reader goes on when something else wakes the loop, here the end of the very thread that has put."""
    queue, seen = Queue(), threading.Event()

    async def reader() -> Delta:
        delta = await queue.take()
        seen.set()
        return delta

    def put() -> bool:
        until_sync(partial(_sleeps, loop_thread))
        queue.put(Delta("a", [1]))
        return seen.wait(0.3)

    loop_thread = threading.get_ident()
    reading = asyncio.create_task(reader())
    assert not await asyncio.to_thread(put), "woken while the thread still ran"
    assert (await reading).tokens == [1]


def _sleeps(loop_thread: int) -> bool:
    """Whether an event loop waits for something to happen."""
    return sys._current_frames()[loop_thread].f_code.co_name == "select"


@pytest.mark.parametrize(("fan_out", "late"), [("loop", False), ("worker", True)])
async def test_outputs_put_by_the_worker_are_seen_a_step_late(fan_out: str, late: bool) -> None:
    """The loop hands a step's tokens out before the next step begins; the worker's are seen when that one is through. Only the last
    step has no other behind it."""
    async with Rig("aio", partial(make_client, "aio", fan_out=fan_out)).client(echo={"device_time": 0.02}) as client:
        phases = []
        async for delta in client.generate(ask("a", params=SamplingParams(max_tokens=6))):
            assert len(delta.tokens) == 1
            phases.append((await client.check()).phase)
    assert phases == [*["step" if late else "idle"] * 5, "idle"]


LATE = Rig("aio-late", partial(make_client, "aio", fan_out="worker"), own_process=False, merges=False)
QUEUED = Rig("v1-queued", partial(make_client, "v1", preset="historical"), merges=False)


@pytest.mark.parametrize(
    ("check", "rig"),
    [
        (requests.check_ten_thousand_requests, LATE),
        (abort.check_abort_at_random_moments, LATE),
        (death.check_what_came_before_death_can_be_read, LATE),
        (close.check_drain_of_streams_nobody_reads, LATE),
        (abort.check_abort_at_random_moments, QUEUED),
        (requests.check_readers_come_and_go, QUEUED),
    ],
    ids=lambda value: value.name if isinstance(value, Rig) else value.__name__.removeprefix("check_"),
)
async def test_queues_obey_the_contract(check: Check, rig: Rig) -> None:
    await check(rig)


async def test_a_queue_hands_out_what_came_one_by_one() -> None:
    """Where a slot would have merged it."""
    async with QUEUED.client() as client:
        stream = await begin(client, ask("a", params=SamplingParams(max_tokens=50)))
        await settled(client)
        assert [len(delta.tokens) async for delta in stream] == [1] * 49
