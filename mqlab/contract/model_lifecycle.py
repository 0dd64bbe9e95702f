"""A model that comes and goes while its engine runs: load, unload, sleep, wake up."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest

from mqlab.client.base import BaseClient
from mqlab.contract.rig import (
    ALERT,
    CLOSE_S,
    SEEN_S,
    Rig,
    Stopwatch,
    ask,
    assert_nothing_new,
    assert_serves,
    begin,
    begin_load,
    echo_of,
    every_codec,
    held,
    needs,
    outcome,
    outcomes,
    read,
    run,
    settled,
    the_engine,
)
from mqlab.contract.waiting import until
from mqlab.errors import CallError, ClientClosedError, EngineDeadError, InvalidRequest, ModelUnavailable
from mqlab.types import SamplingParams

SLOW = {"device_time": 0.005}
FIVE = SamplingParams(max_tokens=5)


async def assert_refuses(client: BaseClient, state: str, why: str) -> None:
    """No model serves; the engine is well all the same, and says so."""
    assert client.info.state == state
    with pytest.raises(ModelUnavailable, match=why):
        await run(client, ask("meanwhile"))
    stats = await settled(client)
    assert stats.blocks_total == 0
    assert (await client.check()).ok and await client.call("ping") is True


@every_codec
async def check_another_model_is_loaded(rig: Rig) -> None:
    async with rig.client() as client:
        await assert_serves(client)
        first, before = client.info, await client.stats()
        second = await client.load("second", vocab_size=64, num_blocks=7)
        assert client.info == second and first.epoch == 1 and first.num_blocks != 7
        assert (second.name, second.vocab_size, second.num_blocks, second.epoch, second.state) == ("second", 64, 7, 2, "ready")
        assert (second.pid, second.max_model_len) == (first.pid, first.max_model_len)
        await assert_serves(client)
        with pytest.raises(InvalidRequest, match="the vocabulary of 'second'"):
            await run(client, ask("a", prompt=(64,)))
        after = await settled(client)
        assert (before.generation_tokens, after.generation_tokens, after.blocks_total) == (5, 10, 7), "counters go on"
        with pytest.raises(ModelUnavailable, match=r"epoch 1 .* 'second' is epoch 2; send it again"):
            await run(client, ask("old", params=FIVE, epoch=1))
        request = ask("new", params=FIVE, epoch=2)
        assert await run(client, request) == (echo_of(request, 5), "length")
        third = await client.load("third")
        assert (third.vocab_size, third.epoch) == (first.vocab_size, 3), "options are of one load, and change what the engine began with"


@every_codec
async def check_unloaded_engine_lives_on(rig: Rig) -> None:
    async with rig.client() as client:
        freed = await client.unload()
        assert freed.rss_before > 0 and freed.rss_after > 0
        await assert_refuses(client, "unloaded", "no model is loaded: 'echo' was unloaded")
        assert await client.call("reset_prefix_cache") is True
        path = await client.call("start_profile")
        assert await client.unload() and await client.call("stop_profile") == path
        Path(path).unlink()
        for call in (client.sleep(), client.wake_up()):
            assert "no model is loaded" in str(await outcome(call))
        assert client.info.epoch == 1
        assert await client.load("second") == client.info
        assert (client.info.name, client.info.epoch, client.info.state) == ("second", 2, "ready")
        await assert_serves(client)


@every_codec
async def check_sleep_and_wake_up(rig: Rig) -> None:
    async with rig.client() as client:
        info = client.info
        assert not await client.is_sleeping() and await client.wake_up() == info
        for level in (1, 2):
            reader = asyncio.create_task(run(client, ask("a")))
            await asyncio.sleep(0)
            assert (await client.sleep(level)).rss_after > 0
            assert isinstance(await outcome(reader), ModelUnavailable)
            assert await client.is_sleeping()
            await assert_refuses(client, "asleep", "'echo' sleeps")
            assert await client.sleep(1)
            assert await client.wake_up() == client.info == info
            assert not await client.is_sleeping()
            await assert_serves(client)
        with pytest.raises(CallError, match="level=3 must be 1"):
            await client.sleep(3)
        await client.sleep()
        assert (await client.load("second")).epoch == 2
        await assert_serves(client)


@every_codec
async def check_live_requests_end_with_their_model(rig: Rig) -> None:
    """Running, waiting, in bursts, and a step ahead; its ids are free again."""
    async with rig.client(echo={**SLOW, "max_num_seqs": 2}) as client:
        for count, changes in enumerate(({}, {"num_scheduler_steps": 4}, {"num_scheduler_steps": 4, "async_scheduling": True}), 1):
            await client.load("next", **changes)
            first = await begin(client, ask("first"))
            others = [asyncio.create_task(run(client, ask(f"r{i}"))) for i in range(4)]
            await asyncio.sleep(0)
            await client.unload()
            for error in await outcomes([read(first), *others]):
                assert isinstance(error, ModelUnavailable) and "the model was unloaded" in str(error)
            assert (await settled(client)).finished["error"] == 5 * count
        await client.load("last")
        request = ask("first", params=FIVE)
        assert await run(client, request) == (echo_of(request, 5), "length")


async def check_failed_loads(rig: Rig) -> None:
    """What can be seen beforehand leaves the model where it is; what cannot leaves none. Either way the engine goes on."""
    async with rig.client(echo=SLOW) as client:
        stream = await begin(client, ask("a", params=SamplingParams(max_tokens=40)))
        with pytest.raises(CallError, match="no folder at '/no/such'"):
            await client.load("wrong", path="/no/such")
        with pytest.raises(CallError, match="load does not take colour; it takes async_scheduling"):
            await client.load("wrong", colour="red")
        assert (await read(stream))[1] == "length" and client.info.epoch == 1
        with tempfile.TemporaryDirectory() as empty, pytest.raises(CallError, match=r"holds no tokenizer\.json"):
            await client.load("wrong", path=empty)
        await assert_refuses(client, "unloaded", "no model is loaded")
        assert (await client.load("right")).epoch == 2
        await assert_serves(client)


async def check_changes_keep_their_order(rig: Rig) -> None:
    async with rig.client(slow_load=0.02) as client:
        calls = [
            client.load("b"),
            client.call("stats"),
            client.unload(),
            client.load("c"),
            client.sleep(2),
            client.wake_up(),
            client.load("d"),
        ]
        b, stats, _, c, _, woken, d = await asyncio.gather(*calls)
        assert [(info.name, info.epoch) for info in (b, c, woken, d)] == [("b", 2), ("c", 3), ("c", 3), ("d", 4)]
        assert stats["blocks_total"] > 0 and client.info == d
        await assert_serves(client)


async def check_loading_is_told_and_refuses_at_once(rig: Rig) -> None:
    """It may take longer than any step; nobody waits for it who did not ask for it."""
    async with rig.client(echo=SLOW, slow_load=0.6, timing=ALERT) as client:
        reader = asyncio.create_task(run(client, ask("a")))
        load = await begin_load(client, "second")
        await until(lambda: client.info.state == "unloaded")
        assert isinstance(await outcome(run(client, ask("b"))), ModelUnavailable)
        assert isinstance(await outcome(reader), ModelUnavailable)
        assert (await load).name == "second" and (await client.check()).ok
        await assert_serves(client)


@needs("own_process")
async def check_kill_while_loading_is_seen(rig: Rig) -> None:
    async with rig.client(slow_load=3600) as client:
        load = await begin_load(client, "second")
        watch = Stopwatch()
        (await the_engine()).kill()
        error = await outcome(load)
        assert isinstance(error, EngineDeadError) and "SIGKILL" in error.cause
        assert watch.seconds < SEEN_S


async def check_close_while_loading(rig: Rig) -> None:
    before = held()
    client = rig.client(slow_load=0.7)
    await client.start()
    load = await begin_load(client, "second")
    watch = Stopwatch()
    await client.close()
    assert watch.seconds < CLOSE_S
    assert isinstance(await outcome(load), ClientClosedError)
    del load
    await until(lambda: held().threads <= before.threads)
    assert_nothing_new(before)
