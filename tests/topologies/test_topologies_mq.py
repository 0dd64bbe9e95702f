"""What only the message-queue layout has: generations of the health check, high-water marks, intake."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from mqlab.client.base import BaseClient
from mqlab.contract import abort, close, death, requests
from mqlab.contract.rig import (
    ALERT,
    PATIENT,
    SEEN_S,
    Check,
    Rig,
    applies,
    ask,
    assert_serves,
    begin,
    outcome,
    outcomes,
    pass_time,
    run,
    settled,
    the_engine,
)
from mqlab.errors import CallTimeout, ClientClosedError, EngineDeadError
from mqlab.topologies import make_client

HISTORICAL = Rig("mq-historical", partial(make_client, "mq", preset="historical"), merges=False)
PID = Rig("mq-pid", partial(make_client, "mq", health="pid"), sees_hangs=False)
BIG = tuple(range(3, 8000))
POLL = Rig("mq-poll", partial(make_client, "mq", intake="poll"))


VARIED = (
    requests.check_ten_thousand_requests,
    requests.check_slow_reader_costs_only_its_tokens,
    abort.check_abort_at_random_moments,
    abort.check_abort_by_id,
    death.check_fatal_begin,
    death.check_kill_is_seen,
    close.check_close_of_a_frozen_engine,
)


@pytest.mark.parametrize(
    ("check", "rig"),
    [(check, rig) for rig in (HISTORICAL, POLL) for check in VARIED if applies(check, rig)],
    ids=lambda value: value.name if isinstance(value, Rig) else value.__name__.removeprefix("check_"),
)
async def test_variants_obey_the_contract(check: Check, rig: Rig) -> None:
    await check(rig)


NARROW = Rig("mq-narrow", partial(make_client, "mq", hwm=1))


async def full_pipe(client: BaseClient) -> list[asyncio.Task[object]]:
    """Requests and a call that wait for room: the engine is stopped and its input is full."""
    (await the_engine()).suspend()
    uses: list[asyncio.Task[object]] = [asyncio.create_task(run(client, ask(f"r{i}", prompt=BIG))) for i in range(200)]
    uses.append(asyncio.create_task(client.call("ping")))
    await pass_time(0.1)
    return uses


async def test_close_ends_those_that_wait_for_room() -> None:
    client = NARROW.client(timing=PATIENT)
    await client.start()
    uses = await full_pipe(client)
    await client.close()
    assert {type(error) for error in await outcomes(uses)} == {ClientClosedError}


async def test_death_ends_those_that_wait_for_room() -> None:
    async with NARROW.client(timing=PATIENT) as client:
        uses = await full_pipe(client)
        (await the_engine()).kill()
        assert {type(error) for error in await outcomes(uses)} == {EngineDeadError}


async def test_call_timeout_counts_the_wait_for_room() -> None:
    async with NARROW.client(timing=PATIENT) as client:
        engine = await the_engine()
        uses = await full_pipe(client)
        with pytest.raises(CallTimeout):
            await client.call("ping", timeout=0.1)
        engine.resume()
        for use in uses[:-1]:
            use.cancel()
        await outcomes(uses)
        await settled(client)
        await assert_serves(client)


async def test_health_by_pid_does_not_see_a_hang() -> None:
    """The third generation, as it was: a hang goes unnoticed for as long as it lasts, and then it goes on."""
    async with PID.client(timing=ALERT, hang_step=3, hang_seconds=1.5) as client:
        stream = await begin(client, ask("a"))
        await pass_time(1.0)
        health = await client.check()
        assert health.ok and "process alive" in health.detail
        await stream.aclose()
        await assert_serves(client)


async def test_health_by_pid_sees_death() -> None:
    async with PID.client(timing=ALERT) as client:
        call = asyncio.create_task(client.call("ping"))
        assert await call
        (await the_engine()).kill()
        assert isinstance(await outcome(client.call("ping")), EngineDeadError)
        assert not (await client.check()).ok


async def test_idle_beats_arrive() -> None:
    """The age of the last beat, which is told in tenths of a second, falls again and again."""
    async with PID.client(timing=replace(PATIENT, idle_interval=0.3)) as client:
        last = 0.0
        async with asyncio.timeout(SEEN_S):
            while (age := await _beat_age(client)) >= last:
                last = age
                await pass_time(0.01)


async def _beat_age(client: BaseClient) -> float:
    return float((await client.check()).detail.split("last idle beat ")[1].split()[0])
