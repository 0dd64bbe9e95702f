"""Death: seen soon, by everybody, with its cause; and slow is not dead."""

from __future__ import annotations

import asyncio
import signal
import traceback
from dataclasses import replace

from mqlab.client.base import BaseClient
from mqlab.config import Timing
from mqlab.contract.processes import ended, gone
from mqlab.contract.rig import (
    ALERT,
    CLOSE_S,
    FAST,
    PATIENT,
    SEEN_S,
    Rig,
    Stopwatch,
    ask,
    assert_nothing_new,
    assert_serves,
    begin,
    echo_of,
    every_codec,
    full,
    held,
    needs,
    outcome,
    outcomes,
    pass_time,
    read,
    run,
    settled,
    the_child,
    the_engine,
)
from mqlab.contract.waiting import until
from mqlab.errors import EngineDeadError
from mqlab.types import SamplingParams

SLOW = {"device_time": 0.01}


async def assert_dead(client: BaseClient, cause: str) -> None:
    """Whatever is asked of the client from now on fails at once, with the first cause; health says so."""
    for use in (run(client, ask("late")), client.call("ping"), client.stats(), anext(client.generate(ask("later")))):
        error = await outcome(use, timeout=1)
        assert isinstance(error, EngineDeadError) and cause in error.cause
    health = await client.check()
    assert not health.ok and cause in health.detail


@every_codec
async def check_fatal_begin(rig: Rig) -> None:
    await _fatal_step(rig, "begin")


async def check_fatal_wait(rig: Rig) -> None:
    await _fatal_step(rig, "wait")


async def check_fatal_finish(rig: Rig) -> None:
    await _fatal_step(rig, "finish")


async def _fatal_step(rig: Rig, part: str) -> None:
    async with rig.client(echo=SLOW, fail_step=5, fail_in=part) as client:
        uses = [run(client, ask(f"r{i}")) for i in range(20)]
        for error in await outcomes(uses):
            assert isinstance(error, EngineDeadError)
            assert f"step 5 was told to fail in {part}" in error.cause
            assert "Traceback (most recent call last)" in error.traceback and "in _fail_in" in error.traceback
            assert "in _fail_in" in str(error), "the engine's own traceback is shown"
        await assert_dead(client, "step 5 was told to fail")
        watch = Stopwatch()
    assert watch.seconds < CLOSE_S


async def check_what_came_before_death_can_be_read(rig: Rig) -> None:
    async with rig.client(slow_step=0.02, fail_step=6) as client:
        request = ask("a")
        tokens: list[int] = []
        try:
            async for delta in client.generate(request):
                tokens += delta.tokens
        except EngineDeadError:
            assert tokens == echo_of(request, len(tokens)) and len(tokens) >= 4
        else:
            raise AssertionError("the stream outlived its engine")


@needs("own_process")
async def check_kill_is_seen(rig: Rig) -> None:
    async with rig.client(echo=SLOW) as client:
        engine = await the_engine()
        uses = [asyncio.create_task(run(client, ask(f"r{i}"))) for i in range(20)]
        await _running(client, 20)
        engine.suspend()
        uses.append(asyncio.create_task(client.call("ping")))
        await asyncio.sleep(0)
        watch = Stopwatch()
        engine.kill()
        for error in await outcomes(uses):
            assert isinstance(error, EngineDeadError) and "SIGKILL" in error.cause
        assert watch.seconds < SEEN_S
        await assert_dead(client, "SIGKILL")


@needs("own_process")
async def check_kill_of_an_idle_engine_is_seen(rig: Rig) -> None:
    async with rig.client() as client:
        (await the_engine()).kill()
        await _seen_dead(client)
        await assert_dead(client, "SIGKILL")


@needs("own_process")
async def check_termination_from_outside_is_seen(rig: Rig) -> None:
    async with rig.client(echo=SLOW) as client:
        reader = asyncio.create_task(run(client, ask("a")))
        await _running(client, 1)
        (await the_engine()).send_signal(signal.SIGTERM)
        assert isinstance(await outcome(reader), EngineDeadError)
        await _seen_dead(client)


@needs("own_process")
async def check_frozen_engine_is_seen(rig: Rig) -> None:
    """Stopped by a signal, while idle and while it works; long before any step could count as a hang."""
    async with rig.client() as client:
        (await the_engine()).suspend()
        await _seen_dead(client)
    async with rig.client(echo=SLOW) as client:
        reader = asyncio.create_task(run(client, ask("a")))
        await _running(client, 1)
        (await the_engine()).suspend()
        assert isinstance(await outcome(reader), EngineDeadError)


@needs("helpers")
async def check_kill_of_a_helper_is_seen(rig: Rig) -> None:
    """Nobody can be served without it: the client dies, and the engine with it."""
    for role in rig.helpers:
        async with rig.client(echo=SLOW) as client:
            uses = [asyncio.create_task(run(client, ask(f"r{i}"))) for i in range(5)]
            await _running(client, 5)
            engine = await the_engine()
            watch = Stopwatch()
            (await the_child(role)).kill()
            for error in await outcomes(uses):
                assert isinstance(error, EngineDeadError) and f"the {role} died" in error.cause and "SIGKILL" in error.cause
            await until(lambda engine=engine: ended(engine), timeout=SEEN_S)
            assert watch.seconds < SEEN_S
            await assert_dead(client, f"the {role} died")


@needs("helpers")
async def check_frozen_helper_is_seen(rig: Rig) -> None:
    for role in rig.helpers:
        async with rig.client() as client:
            (await the_child(role)).suspend()
            await _seen_dead(client)
            await assert_dead(client, f"the {role} process has been stopped")
            await until(lambda: all(map(gone, client.processes.values())))


@needs("own_process")
async def check_a_short_stop_is_not_death(rig: Rig) -> None:
    async with rig.client(echo=SLOW, timing=PATIENT) as client:
        reader = asyncio.create_task(run(client, ask("a", params=SamplingParams(max_tokens=50))))
        await _running(client, 1)
        engine = await the_engine()
        engine.suspend()
        await pass_time(0.3)
        engine.resume()
        assert (await outcome(reader))[1] == "length"


@needs("sees_hangs")
async def check_hang_is_seen(rig: Rig) -> None:
    async with rig.client(echo=SLOW, timing=ALERT, hang_step=5, hang_seconds=2.0) as client:
        await _assert_hang_ends_all(client)


@needs("own_process", "sees_hangs")
async def check_hang_that_holds_the_gil_is_seen(rig: Rig) -> None:
    async with rig.client(echo=SLOW, timing=ALERT, hang_step=5, hold_gil=True) as client:
        await _assert_hang_ends_all(client)
        await until(lambda: gone(client.info.pid))


async def _assert_hang_ends_all(client: BaseClient) -> None:
    uses = [asyncio.create_task(run(client, ask(f"r{i}"))) for i in range(5)]
    watch = Stopwatch()
    for error in await outcomes(uses):
        assert isinstance(error, EngineDeadError) and "step_limit" in error.cause
    assert watch.seconds < SEEN_S
    await assert_dead(client, "step_limit")


@needs("own_process", "sees_hangs")
async def check_hanging_call_is_seen(rig: Rig) -> None:
    async with rig.client(timing=ALERT, slow_build=0) as client:
        error = await outcome(client.call("hang", 3600))
        assert isinstance(error, EngineDeadError) and "phase call" in error.cause


async def check_slow_step_is_not_death(rig: Rig) -> None:
    """A step of many health intervals, below its limit."""
    async with rig.client(hang_step=3, hang_seconds=0.4) as client:
        request = ask("a", params=SamplingParams(max_tokens=6))
        assert await run(client, request) == (echo_of(request, 6), "length")
        await assert_serves(client)


@full
@needs("own_process")
async def check_a_step_of_twenty_seconds_is_not_death(rig: Rig) -> None:
    """With every limit at its default."""
    async with rig.client(timing=Timing(), hang_step=3, hang_seconds=20) as client:
        request = ask("a", params=SamplingParams(max_tokens=6))
        reader = asyncio.create_task(run(client, request))
        oldest = 0.0
        while not reader.done():
            health = await client.check()
            assert health.ok
            oldest = max(oldest, health.phase_age_s if health.phase == "step" else 0)
            await pass_time(0.1)
        assert await reader == (echo_of(request, 6), "length")
        assert oldest > 19
        await assert_serves(client)


async def check_slow_load_is_not_death(rig: Rig) -> None:
    async with rig.client(timing=ALERT, slow_build=0.6) as client:
        assert (await client.check()).ok


async def check_quiet_is_not_death(rig: Rig) -> None:
    """An engine without requests is idle for longer than any step may last."""
    async with rig.client(timing=replace(FAST, step_limit=0.5)) as client:
        await assert_serves(client)
        await pass_time(0.8)
        assert (await client.check()).ok
        await assert_serves(client)


async def check_death_is_told_afresh(rig: Rig) -> None:
    """Each failure has a traceback of its own, however often a dead engine is asked."""
    async with rig.client(echo=SLOW, fail_step=2) as client:
        await outcome(run(client, ask("a")))
        depths = [len(traceback.extract_tb((await outcome(client.stats())).__traceback__)) for _ in range(20)]
        assert max(depths) == min(depths)


async def check_close_after_death_leaves_nothing(rig: Rig) -> None:
    before = held()
    client = rig.client(echo=SLOW, fail_step=3)
    await client.start()
    errors = await outcomes([run(client, ask(f"r{i}")) for i in range(50)])
    assert all(isinstance(error, EngineDeadError) for error in errors)
    watch = Stopwatch()
    await client.close()
    assert watch.seconds < CLOSE_S
    assert_nothing_new(before)


async def check_dead_engine_does_no_more_steps(rig: Rig) -> None:
    """What was declared dead does nothing behind the scenes."""
    async with rig.client(echo=SLOW, fail_step=3) as client:
        stream = await begin(client, ask("a"))
        assert isinstance(await outcome(read(stream)), EngineDeadError)
        steps = client.glance().steps
        await pass_time(0.3)
        assert client.glance().steps == steps


async def check_two_engines_die_apart(rig: Rig) -> None:
    async with rig.client() as well, rig.client(fail_step=1) as ill:
        assert isinstance(await outcome(run(ill, ask("a"))), EngineDeadError)
        await assert_serves(well)
        await settled(well)


async def _running(client: BaseClient, count: int) -> None:
    async with asyncio.timeout(SEEN_S):
        while (await client.stats()).running < count:
            await asyncio.sleep(0)


async def _seen_dead(client: BaseClient) -> None:
    async with asyncio.timeout(SEEN_S):
        while (await client.check()).ok:
            await pass_time(0.01)
