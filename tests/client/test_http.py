"""Clients attached to a front process that somebody else runs. What holds for every client: the contract, tests/topologies."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fronts import FAST, attached, socket_of, wiring

from mqlab.client.base import BaseClient
from mqlab.client.http import FrontClient, HttpClient
from mqlab.contract.processes import gone
from mqlab.contract.waiting import until
from mqlab.errors import CallError, ClientClosedError, EngineDeadError, EngineStartError, InvalidRequest
from mqlab.types import Request, SamplingParams
from mqlab.wire.spec import Spec

ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)
SHORT = SamplingParams(max_tokens=3)
SLOW = {"device_time": 0.005}


async def read(client: BaseClient, id: str, prompt: list[int], params: SamplingParams = SHORT) -> list[int]:
    return [token async for delta in client.generate(Request(id, prompt, params)) for token in delta.tokens]


async def outcome(work: asyncio.Task[object]) -> object:
    async with asyncio.timeout(5):
        return (await asyncio.gather(work, return_exceptions=True))[0]


async def ended(client: BaseClient) -> None:
    async with asyncio.timeout(5):
        await client.ended()


async def _running(client: BaseClient, count: int) -> None:
    await until(lambda: client.glance().running == count)


async def test_clients_with_the_same_ids_do_not_meet() -> None:
    async with attached("inproc", **SLOW) as (front, one), HttpClient(socket_of(front), FAST) as two:
        clients = [front, one, two]
        readers = [asyncio.create_task(read(client, "same", [10 + i])) for i, client in enumerate(clients)]
        assert await asyncio.gather(*readers) == [[10] * 3, [11] * 3, [12] * 3]
        endless = [asyncio.create_task(read(client, "same", [3], ENDLESS)) for client in clients]
        await _running(front, 3)
        await one.abort(["same"])
        assert isinstance(await outcome(endless[1]), list)
        await _running(front, 2)
        with pytest.raises(InvalidRequest, match="'same' is already running"):
            await read(two, "same", [3])
        assert not endless[0].done() and not endless[2].done()
        for reader in endless:
            reader.cancel()
        await asyncio.gather(*endless, return_exceptions=True)


@pytest.mark.parametrize("topology", ["inproc", "mq"])
async def test_detaching_aborts_its_own_and_leaves_the_rest(topology: str) -> None:
    async with attached(topology, **SLOW) as (front, client):
        kept, left = (asyncio.create_task(read(each, "a", [3], ENDLESS)) for each in (front, client))
        await _running(front, 2)
        await client.close()
        assert isinstance(await outcome(left), ClientClosedError)
        await _running(front, 1)
        assert (await front.stats()).finished["abort"] == 1
        async with HttpClient(socket_of(front), FAST) as again:
            assert await read(again, "a", [7]) == [7] * 3
        assert not kept.done()
        kept.cancel()


async def test_detaching_gives_everything_back() -> None:
    async with FrontClient("inproc", wiring(**SLOW)) as front:
        before = _held()
        for _ in range(3):
            client = HttpClient(socket_of(front), FAST)
            await client.start()
            reader = asyncio.create_task(read(client, "a", [3], ENDLESS))
            await _running(front, 1)
            await client.close()
            assert isinstance(await outcome(reader), ClientClosedError)
            del reader
            assert _held() == before
        client = HttpClient(socket_of(front), FAST)
        await client.start()
        del client
        await until(lambda: gc.collect() >= 0 and _held() == before)


def _held() -> tuple[set[str], int, int]:
    """Open files, tasks, threads."""
    files = {f"{entry.name} {entry.readlink()}" for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink() and entry.exists()}
    return files, len(asyncio.all_tasks()), threading.active_count()


async def test_an_attached_client_knows_what_the_front_is() -> None:
    async with attached("v1", name="mirror") as (front, client):
        assert client.front == front.front and client.info == front.info
        assert (client.info.name, client.shape.name) == ("mirror", "v1")
        assert client.front is not None and client.front.pids["engine"] == client.info.pid != client.front.pids["front"]
        assert client.glance().blocks_total == (await client.stats()).blocks_total
        assert "v1" not in client.log_tail()
        with pytest.raises(CallError, match="unknown"):
            await client.call("frobnicate")


async def test_a_killed_front_is_seen_at_once_by_all() -> None:
    async with attached("inproc", **SLOW) as (front, client):
        reader, call = asyncio.create_task(read(client, "a", [3], ENDLESS)), asyncio.create_task(read(front, "b", [3], ENDLESS))
        await _running(front, 2)
        os.kill(front.info.pid, signal.SIGKILL)
        began = time.monotonic()
        error = await outcome(reader)
        assert isinstance(error, EngineDeadError) and "stopped, or it died" in error.cause
        error = await outcome(call)
        assert isinstance(error, EngineDeadError) and "SIGKILL" in error.cause
        assert time.monotonic() - began < 5
        for each in (front, client):
            assert not (await each.check()).ok
            with pytest.raises(EngineDeadError):
                await each.call("ping")


async def test_a_killed_engine_behind_a_front_is_told_with_its_cause() -> None:
    async with attached("v1", **SLOW) as (front, client):
        readers = [asyncio.create_task(read(each, "a", [3], ENDLESS)) for each in (front, client)]
        await _running(front, 2)
        os.kill(client.info.pid, signal.SIGKILL)
        for error in [await outcome(reader) for reader in readers]:
            assert isinstance(error, EngineDeadError) and "SIGKILL" in error.cause
        late = HttpClient(socket_of(front), FAST)
        await late.start()
        await ended(late)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await late.call("ping")
        await late.close()


async def test_an_engine_that_fails_is_told_with_its_traceback() -> None:
    wraps = (Spec("mqlab.probes.faults:FaultyCore", {"fail_step": 3}),)
    async with attached("aio", wraps=wraps, **SLOW) as (_, client):
        with pytest.raises(EngineDeadError, match=r"fail_step(.|\n)*in _fail_in"):
            await read(client, "a", [3], ENDLESS)


async def test_a_stopped_front_is_seen_and_left_alone() -> None:
    async with attached("inproc", replace(FAST, stopped_limit=60), own=FAST) as (front, client):
        os.kill(front.info.pid, signal.SIGSTOP)
        await ended(client)
        with pytest.raises(EngineDeadError, match="SIGSTOP"):
            await client.call("ping")
        await client.close()
        assert not gone(front.info.pid)
        os.kill(front.info.pid, signal.SIGKILL)


@pytest.mark.parametrize("topology", ["inproc", "aio"])
async def test_a_hang_in_the_front_is_seen_from_outside_and_killed_by_its_owner(topology: str) -> None:
    wraps = (Spec("mqlab.probes.faults:FaultyCore", {"hang_step": 2, "hold_gil": True}),)
    async with attached(topology, replace(FAST, step_limit=0.4), wraps=wraps) as (front, client):
        readers = [asyncio.create_task(read(each, "a", [3], ENDLESS)) for each in (front, client)]
        for error in [await outcome(reader) for reader in readers]:
            assert isinstance(error, EngineDeadError)
        await until(lambda: gone(front.info.pid))
        with pytest.raises(EngineDeadError, match="step_limit"):
            await front.call("ping")


async def test_nobody_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match=r"no front process answers at .*/none"):
        await HttpClient(tmp_path / "none", FAST).start()


async def test_attaching_to_a_front_in_a_long_step_waits_for_it() -> None:
    async with FrontClient("inproc", wiring(device_time=0.5)) as front:
        reader = asyncio.create_task(read(front, "a", [3]))
        while (await front.check()).phase != "step":
            await asyncio.sleep(0)
        async with HttpClient(socket_of(front), FAST) as client:
            assert await read(client, "b", [4], SamplingParams(max_tokens=1)) == [4]
        await reader


async def test_attaching_to_a_stuck_front_is_given_up() -> None:
    async with FrontClient("inproc", wiring()) as front:
        os.kill(front.info.pid, signal.SIGSTOP)
        client = HttpClient(socket_of(front), replace(FAST, start_timeout=0.2))
        with pytest.raises(EngineStartError, match=r"0\.2 s; is it stuck"):
            await client.start()
        os.kill(front.info.pid, signal.SIGKILL)


async def test_the_socket_is_nobody_elses() -> None:
    async with attached("inproc") as (front, _):
        assert socket_of(front).is_socket()
        assert socket_of(front).parent.stat().st_mode & 0o777 == 0o700
