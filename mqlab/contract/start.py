"""Starting: ready means ready, and a failed start says why, soon, and leaves nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from mqlab.contract.rig import (
    CLOSE_S,
    FAST,
    SEEN_S,
    Rig,
    Stopwatch,
    ask,
    assert_nothing_new,
    assert_serves,
    every_codec,
    held,
    needs,
    outcome,
    run_folders,
    the_child,
    the_engine,
)
from mqlab.contract.waiting import until
from mqlab.errors import ClientClosedError, ConfigError, EngineStartError, ModelError, MqlabError
from mqlab.wire.spec import Spec


@every_codec
async def check_start_returns_when_healthy(rig: Rig) -> None:
    async with rig.client(slow_build=0.2, echo={"name": "mirror"}) as client:
        health = await client.check()
        assert health.ok and health.state == "ready"
        assert client.info.name == "mirror"
        assert (client.info.pid == os.getpid()) != rig.own_process
        await assert_serves(client)


async def check_unstarted_client_refuses(rig: Rig) -> None:
    client = rig.client()
    with pytest.raises(MqlabError, match="not started"):
        _ = client.info
    for use in (client.stats(), client.call("ping"), anext(client.generate(ask("a")))):
        assert isinstance(await outcome(use), ClientClosedError)
    await client.abort(["a"])
    assert isinstance(await outcome(client.check()), ClientClosedError) or not (await client.check()).ok
    await client.close()


async def check_build_failure_says_why(rig: Rig) -> None:
    before = held()
    error = await outcome(rig.client(fail_build=True).start(), timeout=20)
    assert isinstance(error, EngineStartError)
    assert "told to fail while it is built" in error.cause
    text = "".join(traceback.format_exception(error))
    assert "Traceback (most recent call last)" in text and "in build_core" in text and "InjectedFault" in text
    if rig.own_process:
        assert error.exit_code == 1
        assert "in build_core" in str(error), "the child's own traceback is in the message"
    assert_nothing_new(before)


async def check_refusal_is_raised_as_it_is(rig: Rig) -> None:
    before, nowhere = held(), {"model": "/nowhere/model", "cache": Path("/nowhere")}
    for refusing, kind, why in (
        (Spec("mqlab.config:EngineConfig", {"block_size": 0}), ConfigError, "--block-size=0 must be at least 1"),
        (Spec("mqlab.models.resolve:resolve", nowhere), ModelError, "no folder or file at '/nowhere/model'"),
    ):
        error = await outcome(rig.make(replace(rig.wiring(), core=refusing)).start(), timeout=20)
        assert type(error) is kind and str(error).startswith(why)
        assert len(str(error).splitlines()) == 1, "nothing is broken: a traceback or a log would tell no more"
    assert_nothing_new(before)


async def check_wrong_spec_is_named(rig: Rig) -> None:
    wiring = replace(rig.wiring(), core=Spec("no_such_module:build"))
    error = await outcome(rig.make(wiring).start(), timeout=20)
    assert isinstance(error, ConfigError)
    assert "no_such_module:build" in str(error)


async def check_start_timeout_is_named(rig: Rig) -> None:
    before, watch = held(), Stopwatch()
    client = rig.client(slow_build=2.5, timing=replace(FAST, start_timeout=0.3))
    error = await outcome(client.start(), timeout=20)
    assert isinstance(error, EngineStartError)
    assert "0.3 s" in str(error) and "start_timeout" in str(error)
    assert watch.seconds < 2.4, "it did not wait for the load"
    if rig.own_process:
        assert_nothing_new(before)


@needs("own_process")
async def check_killed_while_loading(rig: Rig) -> None:
    before = held()
    start = asyncio.create_task(rig.client(slow_build=60).start())
    engine = await the_engine()
    watch = Stopwatch()
    engine.kill()
    error = await outcome(start)
    assert isinstance(error, EngineStartError)
    assert "SIGKILL" in str(error) and error.exit_code == -signal.SIGKILL
    assert watch.seconds < SEEN_S
    del start
    assert_nothing_new(before)


@needs("helpers")
async def check_helper_killed_while_loading(rig: Rig) -> None:
    before = held()
    for role in rig.helpers:
        start = asyncio.create_task(rig.client(slow_build=60).start())
        (await the_child(role)).kill()
        error = await outcome(start)
        assert isinstance(error, EngineStartError)
        assert role in error.cause and "SIGKILL" in error.cause and error.exit_code == -signal.SIGKILL
        del start
    assert_nothing_new(before)


@needs("own_process")
async def check_frozen_while_loading(rig: Rig) -> None:
    client = rig.client(timing=replace(FAST, start_timeout=0.5), slow_build=60)
    start = asyncio.create_task(client.start())
    (await the_engine()).suspend()
    assert isinstance(await outcome(start), EngineStartError)


async def check_close_during_start(rig: Rig) -> None:
    before = held()
    client = rig.client(slow_build=0.4)
    start = asyncio.create_task(client.start())
    await _begun(rig)
    watch = Stopwatch()
    await client.close()
    assert watch.seconds < CLOSE_S
    assert isinstance(await outcome(start), ClientClosedError), "a closed client did not start"
    assert isinstance(await outcome(client.stats()), ClientClosedError)
    del start
    await until(lambda: held().threads <= before.threads)
    assert_nothing_new(before)


async def check_start_is_cancelled(rig: Rig) -> None:
    before = held()
    client = rig.client(slow_build=0.4)
    start = asyncio.create_task(client.start())
    await _begun(rig)
    start.cancel()
    assert isinstance(await outcome(start), asyncio.CancelledError)
    del start
    await until(lambda: held().threads <= before.threads)
    assert_nothing_new(before)


async def check_second_start_takes_nothing_more(rig: Rig) -> None:
    before = held()
    client = rig.client()
    await client.start()
    second = await outcome(client.start(), timeout=20)
    assert second is None or isinstance(second, MqlabError)
    assert len(run_folders()) <= len(before.files) + 1, "a second start launched a second engine"
    if second is not None:
        await assert_serves(client)
    await client.close()
    assert_nothing_new(before)


async def check_clients_are_independent(rig: Rig) -> None:
    async with rig.client(echo={"name": "left"}) as left, rig.client(echo={"name": "right"}) as right:
        assert (left.info.name, right.info.name) == ("left", "right")
        await assert_serves(left)
        await left.close()
        await assert_serves(right)


async def _begun(rig: Rig) -> None:
    """The core is being built."""
    if rig.own_process:
        await the_engine()
    for _ in range(10):
        await asyncio.sleep(0)
