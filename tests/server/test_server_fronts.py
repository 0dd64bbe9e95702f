"""Several front processes on one port over one engine: one server to whoever uses it, whatever happens to one of its processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from serving import FAST, Process, accepts, echo_command, running

from mqlab.client.http import HttpClient
from mqlab.config import ServerConfig, Timing
from mqlab.contract.processes import ended, gone
from mqlab.contract.rig import ask, read
from mqlab.contract.waiting import until, until_sync
from mqlab.errors import ConfigError
from mqlab.probes.running import pids as running_pids
from mqlab.record.trace import Trace
from mqlab.types import SamplingParams
from mqlab.wire.registry import Entry, Registry

SLOW = {"device_time": 0.005, "max_model_len": 10**6, "num_blocks": 10**5, "max_num_seqs": 512}
LONG: dict[str, Any] = {"prompt": "Hello world", "max_tokens": 100_000, "ignore_eos": True, "stream": True}


def server(model_folder: Path, count: int = 2, **options: Any) -> list[str]:
    """A server of so many fronts."""
    settings = {"api_server_count": count, **options.pop("settings", {})}
    return echo_command(model_folder, settings=settings, **{**SLOW, **options})


def pids(process: Process) -> dict[str, int]:
    """The server's processes by role."""
    found = {}
    for child in psutil.Process(process.popen.pid).children():
        try:
            if "mqlab.wire.boot" in (command := child.cmdline()):
                found[command[-1]] = child.pid
        except psutil.Error:
            continue
    return found


def connections(process: Process) -> dict[str, int]:
    """How many each front has."""
    fronts = {role: psutil.Process(pid) for role, pid in pids(process).items() if role.startswith("front")}
    return {role: sum(one.status == "ESTABLISHED" for one in front.net_connections("tcp")) for role, front in fronts.items()}


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """A connection that stays open."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        yield connection


@asynccontextmanager
async def client_of(process: Process) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=process.url, timeout=30, limits=limits) as client:
        yield client


async def gauge(client: httpx.AsyncClient, name: str) -> float:
    """A value on the page, summed over its labels."""
    lines = [line for line in (await client.get("/metrics")).text.splitlines() if line.startswith(f"mqlab:{name}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def until_gauge(client: httpx.AsyncClient, name: str, value: float) -> None:
    async with asyncio.timeout(20):
        while await gauge(client, name) != value:
            await asyncio.sleep(0)


async def answer_of(client: httpx.AsyncClient, **changes: Any) -> tuple[str, str]:
    """The text of a streamed answer, and how it ended: with a finish reason, an error's message, or broken off."""
    text, how = "", "broke"
    try:
        async with client.stream("POST", "/v1/completions", json={**LONG, **changes}) as response:
            if response.status_code != 200:
                return "", str(response.status_code)
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        how = event["error"]["message"]
                    else:
                        text += event["choices"][0]["text"]
                        how = event["choices"][0]["finish_reason"] or how
    except httpx.TransportError:
        pass
    return text, how


async def begin_streams(client: httpx.AsyncClient, count: int, **changes: Any) -> list[asyncio.Task[tuple[str, str]]]:
    """Answers that have begun, one after the other, so that every front has its turn."""
    streams = []
    for number in range(1, count + 1):
        streams.append(asyncio.create_task(answer_of(client, **changes)))
        await until_gauge(client, "num_requests_running", number)
    return streams


def entry_of(process: Process) -> Entry:
    (entry,) = [entry for entry in Registry().entries() if entry.pid == process.popen.pid]
    return entry


async def test_one_server_to_whoever_uses_it(model_folder: Path, tmp_path: Path) -> None:
    settings = {"limit_concurrency": 16, "enable_control": True}
    with running(server(model_folder, settings=settings), tmp_path) as process:
        process.wait_ready()
        entry = entry_of(process)
        assert entry.socket is not None and entry.recording is not None
        those = [psutil.Process(pid) for pid in pids(process).values()]
        assert running_pids(entry) == {"launcher": process.popen.pid, **pids(process)}
        _check_spread(process)
        async with client_of(process) as client, HttpClient(entry.socket, FAST) as attached:
            await _check_limit(process, client)
            # Whoever is attached is one more client of the same engine.
            assert await read(attached.generate(ask("a", params=SamplingParams(max_tokens=3)))) == ([3, 4, 5], "length")
            assert await gauge(client, "request_success_total") == 16
            await _check_load(process, client, model_folder)
            await until(lambda: attached.info.name == "another")
        process.popen.kill()
        until_sync(lambda: all(map(ended, those)) and not Path(entry.socket or "").parent.exists())
        trace = Trace.of(entry.recording)
        writers = {str(writer).rpartition("-")[0] for writer in trace.tables["requests"]["writer"].to_pylist()}
        assert writers >= {"front-0", "front-1", "launcher"}


def _check_spread(process: Process) -> None:
    with ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(connected(process.url))
        until_sync(lambda: sum(connections(process).values()) == 64)
        assert min(connections(process).values()) >= 4, connections(process)


async def _check_limit(process: Process, client: httpx.AsyncClient) -> None:
    """It holds for both together."""
    streams = await begin_streams(client, 16)
    assert min(connections(process).values()) > 0, connections(process)
    assert {(await answer_of(client, max_tokens=1))[1] for _ in range(20)} == {"503"}
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    await until_gauge(client, "num_requests_running", 0)


async def _check_load(process: Process, client: httpx.AsyncClient, model_folder: Path) -> None:
    """A model that is loaded through one of them is every one's."""
    body = {"model": "another", "options": {"path": str(model_folder)}}
    assert (await client.post("/v1/model/load", json=body)).status_code == 200
    for _ in range(10):
        async with client_of(process) as fresh, asyncio.timeout(20):
            while (await fresh.get("/v1/models")).json()["data"][0]["id"] != "another":
                await asyncio.sleep(0)
            assert await answer_of(fresh, model="another", max_tokens=2) == ("Hello world", "length")


async def test_a_front_that_is_killed_is_started_again_and_the_engines_death_ends_all(model_folder: Path, tmp_path: Path) -> None:
    with running(server(model_folder), tmp_path) as process:
        process.wait_ready()
        before = pids(process)
        async with client_of(process) as client, client_of(process) as other:
            streams = await begin_streams(client, 8, max_tokens=500)
            os.kill(before["front-1"], signal.SIGKILL)
            await until(lambda: gone(before["front-1"]))  # its connections are closed by then
            answers = await asyncio.gather(*streams)
            assert {how for _, how in answers} == {"length", "broke"}
            assert {text for text, how in answers if how == "length"} == {"Hello world" * 250}
            await until_gauge(other, "num_requests_running", 0)
            await until(lambda: len(pids(process)) == 3, timeout=30)
            after = pids(process)
            assert [role for role in before if before[role] != after[role]] == ["front-1"]
            assert running_pids(entry_of(process)) == {"launcher": process.popen.pid, **after}
            assert f"front-1 process {before['front-1']} was killed by SIGKILL" in process.text()
            # Now the engine, when both serve again.
            async with asyncio.timeout(30):
                while 'front="1"' not in (await other.get("/metrics")).text:
                    await asyncio.sleep(0)
            streams = await begin_streams(client, 8)
            os.kill(process.engine_pid, signal.SIGKILL)
            ends = {how for _, how in await asyncio.gather(*streams)}
        assert len(ends) == 1 and "SIGKILL" in ends.pop()
        those = [psutil.Process(pid) for role, pid in after.items() if role != "engine" and not gone(pid)]
        assert await asyncio.to_thread(process.popen.wait, 15) == 1
        assert f"EngineDeadError: the engine died: engine process {process.engine_pid} was killed by SIGKILL" in process.text()
        assert all(map(ended, those))


@pytest.mark.parametrize("hurry", [True, pytest.param(False, marks=pytest.mark.full)])
async def test_a_signal_lets_short_streams_end_and_cuts_long_ones(model_folder: Path, tmp_path: Path, hurry: bool) -> None:
    with running(server(model_folder, drain_timeout=100.0 if hurry else 2.5), tmp_path) as process:
        process.wait_ready()
        those = [psutil.Process(pid) for pid in pids(process).values()]
        async with client_of(process) as client:
            short = [asyncio.create_task(answer_of(client, max_tokens=100)) for _ in range(8)]
            long = [asyncio.create_task(answer_of(client)) for _ in range(8)]
            await until_gauge(client, "num_requests_running", 16)
            process.popen.send_signal(signal.SIGTERM)
            await until(lambda: not accepts(process.url))
            assert {how for _, how in await asyncio.gather(*short)} == {"length"}
            if hurry:
                process.popen.send_signal(signal.SIGTERM)
            ends = {how for _, how in await asyncio.gather(*long)}
            assert len(ends) == 1 and "shutting down" in ends.pop()
        assert await asyncio.to_thread(process.popen.wait, 10) == 0
        assert all(map(ended, those))
        assert "Traceback" not in process.text()


@pytest.mark.full
def test_a_front_that_dies_again_and_again_ends_the_server(model_folder: Path, tmp_path: Path) -> None:
    with running(server(model_folder), tmp_path) as process:
        process.wait_ready()
        killed = set[int]()
        while process.popen.poll() is None:
            if (pid := pids(process).get("front-0")) is not None and pid not in killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
        assert process.popen.returncode == 1
        assert "FrontError: front-0 died 6 times" in process.text()


@pytest.mark.full
@pytest.mark.parametrize("timing", [FAST, replace(FAST, stopped_limit=60, step_limit=3)], ids=["stopped", "silent"])
async def test_a_front_that_is_stuck_is_replaced(model_folder: Path, tmp_path: Path, timing: Timing) -> None:
    with running(server(model_folder, timing=timing), tmp_path) as process:
        process.wait_ready()
        before = pids(process)["front-0"]
        os.kill(before, signal.SIGSTOP)
        for _ in range(20):
            async with client_of(process) as client:
                assert (await client.get("/health")).status_code == 200
        await until(lambda: pids(process).get("front-0", before) != before, timeout=30)
        assert process.stop(10) == 0


def test_other_topologies_are_refused() -> None:
    with pytest.raises(ConfigError, match="api-server-count"):
        ServerConfig(api_server_count=2, topology="mq")
