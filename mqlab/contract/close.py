"""Closing: bounded, idempotent, complete; also when nobody does it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from mqlab.client.base import BaseClient
from mqlab.contract.rig import (
    CLOSE_S,
    FAST,
    PATIENT,
    Rig,
    Stopwatch,
    ask,
    assert_nothing_new,
    assert_serves,
    begin,
    echo_of,
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
    without_collector,
)
from mqlab.contract.waiting import until
from mqlab.errors import ClientClosedError, MqlabError
from mqlab.types import SamplingParams

SLOW = {"device_time": 0.01}

_GONE_S = 20.0
"""What was dropped must be gone within this; one collection takes a second in a process as large as a whole run of tests."""


async def check_close_leaves_nothing(rig: Rig) -> None:
    before = held()
    client = rig.client()
    await client.start()
    await assert_serves(client)
    watch = Stopwatch()
    await client.close()
    assert watch.seconds < CLOSE_S
    assert_nothing_new(before)


async def check_close_twice_and_at_once(rig: Rig) -> None:
    before = held()
    client = rig.client()
    await client.start()
    await asyncio.gather(*(client.close() for _ in range(5)))
    await client.close()
    await client.close(drain=5)
    assert_nothing_new(before)


async def check_close_before_start(rig: Rig) -> None:
    before = held()
    client = rig.client()
    await client.close()
    assert isinstance(await outcome(client.start()), ClientClosedError)
    del client
    await until(lambda: held().threads <= before.threads)
    assert_nothing_new(before)


async def check_use_after_close(rig: Rig) -> None:
    client = rig.client()
    await client.start()
    await client.close()
    uses = [run(client, ask("a")), client.call("ping"), client.stats(), client.check(), client.start()]
    assert [type(error) for error in await outcomes(uses)] == [ClientClosedError] * 5
    await client.abort(["a"])


async def check_close_ends_streams_and_calls(rig: Rig) -> None:
    before = held()
    client = rig.client(slow_step=0.05)
    await client.start()
    unread = await begin(client, ask("unread"))
    uses = [asyncio.create_task(run(client, ask(f"r{i}"))) for i in range(20)]
    await asyncio.sleep(0)
    watch = Stopwatch()
    await client.close()
    assert watch.seconds < CLOSE_S
    assert [type(error) for error in await outcomes(uses)] == [ClientClosedError] * 20
    assert isinstance(await outcome(read(unread)), ClientClosedError)
    del uses, unread
    assert_nothing_new(before)


@needs("own_process")
async def check_close_ends_waiting_calls(rig: Rig) -> None:
    client = rig.client(slow_build=0)
    await client.start()
    call = asyncio.create_task(client.call("hang", 3600))
    await asyncio.sleep(0)
    watch = Stopwatch()
    await client.close()
    assert isinstance(await outcome(call), ClientClosedError)
    assert watch.seconds < CLOSE_S


async def check_close_inside_a_stream(rig: Rig) -> None:
    client = rig.client(echo=SLOW)
    await client.start()
    with pytest.raises(ClientClosedError):
        async for _ in client.generate(ask("a")):
            await client.close()


async def check_close_whose_caller_is_cancelled(rig: Rig) -> None:
    before = held()
    client = rig.client(echo=SLOW)
    await client.start()
    stream = await begin(client, ask("a"))
    closing = asyncio.create_task(client.close(drain=0.2))
    await asyncio.sleep(0)
    closing.cancel()
    assert isinstance(await outcome(closing), asyncio.CancelledError)
    await client.close()
    await stream.aclose()
    del closing, stream
    assert_nothing_new(before)


async def check_drain_lets_streams_finish(rig: Rig) -> None:
    client = rig.client(echo=SLOW)
    await client.start()
    request = ask("a", params=SamplingParams(max_tokens=40))
    reader = asyncio.create_task(run(client, request))
    await asyncio.sleep(0)
    watch = Stopwatch()
    await client.close(drain=10)
    assert await outcome(reader) == (echo_of(request, 40), "length")
    assert watch.seconds < 5, "it ends with the last stream, not with the time"


async def check_drain_with_slow_idle_interval(rig: Rig) -> None:
    client = rig.client(echo=SLOW, timing=replace(FAST, idle_interval=5))
    await client.start()
    reader = asyncio.create_task(run(client, ask("a", params=SamplingParams(max_tokens=10))))
    await asyncio.sleep(0)
    await client.close(drain=3)
    assert (await outcome(reader))[1] == "length"


async def check_drain_is_bounded(rig: Rig) -> None:
    client = rig.client(echo=SLOW)
    await client.start()
    reader = asyncio.create_task(run(client, ask("a")))
    await asyncio.sleep(0)
    watch = Stopwatch()
    closing = asyncio.create_task(client.close(drain=0.3))
    await asyncio.sleep(0)
    assert isinstance(await outcome(run(client, ask("late"))), ClientClosedError), "no new requests"
    await closing
    assert isinstance(await outcome(reader), ClientClosedError)
    assert 0.3 <= watch.seconds < 0.3 + CLOSE_S


async def check_drain_of_streams_nobody_reads(rig: Rig) -> None:
    client = rig.client(echo={"device_time": 0.002})
    await client.start()
    stream = client.generate(ask("a", params=SamplingParams(max_tokens=50)))
    first = await anext(stream)
    watch = Stopwatch()
    await client.close(drain=10)
    assert watch.seconds < 5
    _, finish = await read(stream)
    assert (finish or first.finish) == "length", "what arrived can still be read"


@needs("own_process")
async def check_close_of_a_frozen_engine(rig: Rig) -> None:
    """Stopped by a signal, with messages that it never took, and open streams."""
    before = held()
    client = rig.client(echo=SLOW, timing=PATIENT)
    await client.start()
    streams = [await begin(client, ask(f"s{i}")) for i in range(5)]
    (await the_engine()).suspend()
    big = tuple(range(3, 8000))
    uses = [asyncio.create_task(run(client, ask(f"r{i}", prompt=big))) for i in range(300)]
    uses.append(asyncio.create_task(client.call("ping")))
    await asyncio.sleep(0)
    watch = Stopwatch()
    await client.close()
    assert watch.seconds < CLOSE_S
    assert {type(error) for error in await outcomes(uses)} == {ClientClosedError}
    assert {type(await outcome(read(stream))) for stream in streams} == {ClientClosedError}
    del uses, streams
    assert_nothing_new(before)


@needs("helpers")
async def check_close_of_a_frozen_helper(rig: Rig) -> None:
    before = held()
    for role in rig.helpers:
        client = rig.client(echo=SLOW, timing=PATIENT)
        await client.start()
        reader = asyncio.create_task(run(client, ask("a")))
        (await the_child(role)).suspend()
        await asyncio.sleep(0)
        watch = Stopwatch()
        await client.close()
        assert watch.seconds < CLOSE_S
        assert isinstance(await outcome(reader), ClientClosedError)
        del reader
    assert_nothing_new(before)


@needs("own_process")
async def check_close_of_a_killed_engine(rig: Rig) -> None:
    before = held()
    client = rig.client()
    await client.start()
    (await the_engine()).kill()
    watch = Stopwatch()
    await client.close()
    assert watch.seconds < CLOSE_S
    assert_nothing_new(before)


@needs("own_process")
async def check_close_of_a_hung_engine(rig: Rig) -> None:
    before = held()
    client = rig.client(hang_step=1, hold_gil=True)
    await client.start()
    reader = asyncio.create_task(run(client, ask("a")))
    await pass_time(0.1)
    watch = Stopwatch()
    await client.close()
    assert watch.seconds < CLOSE_S
    assert isinstance(await outcome(reader), ClientClosedError)
    del reader
    assert_nothing_new(before)


async def check_error_in_the_block_passes_through(rig: Rig) -> None:
    before = held()
    client = rig.client()
    with pytest.raises(ZeroDivisionError):
        async with client:
            await begin(client, ask("a"))
            raise ZeroDivisionError
    assert isinstance(await outcome(client.check()), ClientClosedError)
    del client
    await until(lambda: held().tasks <= before.tasks)
    assert_nothing_new(before)


async def check_open_and_close_many_times(rig: Rig) -> None:
    before = held()
    for _ in range(5):
        client = rig.client()
        async with client:
            await assert_serves(client)
        del client
    assert_nothing_new(before)


async def check_dropped_client_gives_all_back(rig: Rig) -> None:
    """No close, no collector: the last reference goes, and with it everything."""
    before = held()
    restore = without_collector()
    try:
        await _start_and_drop(rig)
        await until(lambda: _back_to(before), timeout=CLOSE_S)
    finally:
        restore()
    assert_nothing_new(before)


async def _start_and_drop(rig: Rig) -> None:
    client = rig.client()
    await client.start()
    await assert_serves(client)
    await settled(client)


async def _assert_collected(rig: Rig, use_and_drop: Callable[[Rig], Awaitable[None]]) -> None:
    before = held()
    await use_and_drop(rig)
    await until(lambda: gc.collect() >= 0 and _back_to(before), timeout=_GONE_S)
    assert_nothing_new(before)


async def check_client_dropped_with_streams(rig: Rig) -> None:
    await _assert_collected(rig, _stream_and_drop)


async def _stream_and_drop(rig: Rig) -> None:
    client = rig.client(echo=SLOW)
    await client.start()
    stream = await begin(client, ask("a"))
    reader = asyncio.create_task(run(client, ask("b")))
    await asyncio.sleep(0)
    reader.cancel()
    assert isinstance(await outcome(reader), asyncio.CancelledError)
    await stream.aclose()


async def check_client_dropped_after_death(rig: Rig) -> None:
    await _assert_collected(rig, _die_and_drop)


async def _die_and_drop(rig: Rig) -> None:
    client: BaseClient = rig.client(fail_step=2)
    await client.start()
    assert isinstance(await outcome(run(client, ask("a"))), MqlabError)


def _back_to(before: object) -> bool:
    try:
        assert_nothing_new(before)  # type: ignore[arg-type]
    except AssertionError:
        return False
    return True
