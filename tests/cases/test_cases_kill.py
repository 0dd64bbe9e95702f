"""A process is killed or stopped from outside: what is left of the others ends by itself, says why, and frees the port.

C01: the front is killed while the engine idles, streams or loads. C02: the engine is killed or stopped beside a stream, a whole answer
and a queued call. C08: it is killed while it loads. C13: a stop beside a dead engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from serving import Process, echo_command, mqlab_command, running

from mqlab.contract.processes import ended, gone
from mqlab.contract.waiting import until, until_sync

GONE_S = 5.0
"""Within this all is to be gone, and told."""

LONG: dict[str, Any] = {"prompt": "Hello world", "max_tokens": 100_000, "ignore_eos": True}
SLOW = {"device_time": 0.005, "max_model_len": 10**6, "num_blocks": 10**5}
SMALL = ["--num-threads", "1", "--kv-cache-gb", "0.1"]
REMOTE = ["v1", "mq"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def folders(runtime: Path, process: Process) -> list[Path]:
    """The run folders that a server of this pid has made."""
    return list(runtime.glob(f"mqlab-{process.popen.pid}-*"))


def kill_front(process: Process) -> list[psutil.Process]:
    """SIGKILL, and nothing else: what it had started is returned."""
    children = psutil.Process(process.popen.pid).children(recursive=True)
    process.popen.kill()
    process.popen.wait()
    return children


def assert_all_gone(runtime: Path, process: Process, children: list[psutil.Process]) -> None:
    until_sync(lambda: all(map(ended, children)) and not folders(runtime, process), GONE_S)


def assert_serves(command: list[str], folder: Path, port: int) -> None:
    with running(command, folder) as process:
        assert process.wait_ready().url.endswith(f":{port}")
        answer = httpx.post(f"{process.url}/v1/completions", json={"prompt": "Hello", "max_tokens": 1}, timeout=20)
        assert answer.status_code == 200
        assert process.stop(10) == 0


@contextmanager
def four_streams(url: str) -> Iterator[None]:
    """Four streams, each of which has brought something."""
    with httpx.Client(base_url=url, timeout=20) as client:
        requests = [client.build_request("POST", "/v1/completions", json={**LONG, "stream": True}) for _ in range(4)]
        responses = [client.send(request, stream=True) for request in requests]
        for response in responses:
            next(response.iter_raw())
        yield
        for response in responses:
            response.close()


@pytest.mark.parametrize("topology", REMOTE)
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "streaming"])
def test_a_killed_front_leaves_nothing(model_folder: Path, runtime_dir: Path, tmp_path: Path, topology: str, busy: bool) -> None:
    port = free_port()
    command = echo_command(model_folder, port=port, topology=topology, **SLOW)
    with running(command, tmp_path) as process, ExitStack() as stack:
        process.wait_ready()
        assert folders(runtime_dir, process)
        if busy:
            stack.enter_context(four_streams(process.url))
        children = kill_front(process)
        assert children
        assert_all_gone(runtime_dir, process, children)
        assert_serves(command, tmp_path, port)


@pytest.mark.parametrize("topology", REMOTE)
def test_a_front_killed_while_the_model_loads_leaves_nothing(runtime_dir: Path, tmp_path: Path, topology: str) -> None:
    port = free_port()
    command = mqlab_command(
        "serve", "smollm2-135m", "--port", str(port), "--topology", topology, "--num-threads", "1", "--kv-cache-gb", "0.1"
    )
    with running(command, tmp_path) as process:
        until_sync(lambda: "loading weights" in process.text(), 60)
        children = kill_front(process)
        assert children
        assert "mqlab serving" not in process.text()
        assert_all_gone(runtime_dir, process, children)
    assert_serves(command, tmp_path, port)


@pytest.mark.parametrize("topology", REMOTE)
def test_a_front_killed_beside_a_stopped_engine(model_folder: Path, runtime_dir: Path, tmp_path: Path, topology: str) -> None:
    """The kernel continues it, since its process group is orphaned, and then it leaves."""
    with running(echo_command(model_folder, topology=topology, **SLOW), tmp_path) as process:
        process.wait_ready()
        os.kill(process.engine_pid, signal.SIGSTOP)
        engine = psutil.Process(process.engine_pid)
        until_sync(lambda: engine.status() == psutil.STATUS_STOPPED)
        children = kill_front(process)
        try:
            assert_all_gone(runtime_dir, process, children)
        finally:
            psutil.wait_procs([child for child in children if _killed(child)], timeout=GONE_S)


def _killed(child: psutil.Process) -> bool:
    try:
        child.kill()
    except psutil.NoSuchProcess:
        return False
    return True


@asynccontextmanager
async def three_calls(url: str) -> AsyncIterator[tuple[asyncio.Task[list[str]], list[asyncio.Task[httpx.Response]], httpx.AsyncClient]]:
    """A stream, a whole answer, and one that queues behind them, on an engine that runs two at once."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        stream = asyncio.create_task(_read(client))
        await _gauges(client, running=1, waiting=0)
        whole = asyncio.create_task(client.post("/v1/completions", json=LONG))
        await _gauges(client, running=2, waiting=0)
        queued = asyncio.create_task(client.post("/v1/completions", json=LONG))
        await _gauges(client, running=2, waiting=1)
        yield stream, [whole, queued], client


async def _read(client: httpx.AsyncClient) -> list[str]:
    async with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
        return [line async for line in response.aiter_lines() if line]


async def _gauges(client: httpx.AsyncClient, **wanted: int) -> None:
    lines = {f'mqlab:num_requests_{name}{{engine="0",model_name="echo"}} {count}.0' for name, count in wanted.items()}
    async with asyncio.timeout(20):
        while not lines <= set((await client.get("/metrics")).text.splitlines()):
            await asyncio.sleep(0)


@pytest.mark.parametrize("topology", REMOTE)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV], ids=lambda number: number.name)
async def test_an_engine_that_is_hit_ends_every_call_and_then_its_server(
    model_folder: Path, runtime_dir: Path, tmp_path: Path, topology: str, number: signal.Signals
) -> None:
    with running(echo_command(model_folder, topology=topology, max_num_seqs=2, **SLOW), tmp_path) as process:
        process.wait_ready()
        async with three_calls(process.url) as (stream, others, client):
            os.kill(process.engine_pid, number)
            async with asyncio.timeout(GONE_S):
                *events, last = await stream
                answers = await asyncio.gather(*others)
                fresh = await client.post("/v1/completions", json=LONG)
                health = await client.get("/health")
                metrics = await client.get("/metrics")
        assert events
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["code"] == "engine_dead"
        cause = "stopped" if number == signal.SIGSTOP else number.name
        assert cause in error["message"]
        assert cause in health.json()["detail"]
        assert [answer.status_code for answer in [*answers, fresh, health]] == [503] * 4
        assert {answer.json()["error"]["message"] for answer in [*answers, fresh]} == {error["message"]}
        assert metrics.status_code == 200
        assert 'finished_reason="error",model_name="echo"} 4.0' in metrics.text
        assert await asyncio.to_thread(process.popen.wait, 10) == 1
        assert process.text().splitlines()[-1].startswith("EngineDeadError: the engine ")
        assert "Traceback" not in process.text()
        await until(lambda: gone(process.engine_pid) and not folders(runtime_dir, process), GONE_S)


@pytest.mark.parametrize("topology", REMOTE)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_stopping_beside_a_dead_engine_is_bounded(
    model_folder: Path, runtime_dir: Path, tmp_path: Path, topology: str, number: signal.Signals
) -> None:
    with running(echo_command(model_folder, topology=topology), tmp_path) as process:
        process.wait_ready()
        os.kill(process.engine_pid, signal.SIGKILL)
        until_sync(lambda: httpx.get(f"{process.url}/health").status_code == 503)
        process.popen.send_signal(number)
        process.popen.wait(5)
        assert "Traceback" not in process.text()
        assert not folders(runtime_dir, process)


@pytest.mark.parametrize("topology", REMOTE)
def test_an_engine_killed_while_it_loads_is_told_at_once(runtime_dir: Path, tmp_path: Path, topology: str) -> None:
    with running(mqlab_command("serve", "smollm2-135m", "--port", "0", "--topology", topology, *SMALL), tmp_path) as process:
        until_sync(lambda: "loading weights" in process.text(), 60)
        (engine,) = psutil.Process(process.popen.pid).children()
        engine.kill()
        assert process.popen.wait(GONE_S) == 1
        last = process.text().splitlines()[-1]
        assert last.startswith("mqlab: ")
        assert "SIGKILL" in last
        assert "memory" in last, "who kills with SIGKILL is mostly the kernel, for want of memory: the remedy is to need less"
        assert "Traceback" not in process.text()
        assert not folders(runtime_dir, process)
