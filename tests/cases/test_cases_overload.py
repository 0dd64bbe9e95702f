"""More than a server can take at once: refused at once and politely (C77), or waiting for their turn; and few open files (C53)."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from serving import Process, echo_command, running

from mqlab.contract.waiting import until, until_sync

COMPLETIONS = "/v1/completions"
FOUR: dict[str, Any] = {"max_num_seqs": 4, "device_time": 0.005}
EVERYBODY = httpx.Limits(max_connections=None)


@asynccontextmanager
async def talking(process: Process) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=process.url, limits=EVERYBODY, timeout=60) as client:
        yield client


async def post(client: httpx.AsyncClient, prompt: str, **more: Any) -> tuple[httpx.Response, float]:
    """An answer, and when it came."""
    answer = await client.post(COMPLETIONS, json={"prompt": prompt, "max_tokens": 20, "ignore_eos": True, **more})
    return answer, time.monotonic()


async def gauges(client: httpx.AsyncClient) -> tuple[int, int]:
    """Requests that run, and that wait."""
    page = (await client.get("/metrics")).text
    return tuple(int(float(re.search(rf"num_requests_{name}{{[^}}]*}} (\S+)", page)[1])) for name in ("running", "waiting"))  # type: ignore[index]


async def test_of_forty_at_once_twelve_are_taken_and_the_rest_is_refused_at_once(model_folder: Path, tmp_path: Path) -> None:
    with running(echo_command(model_folder, settings={"limit_concurrency": 12}, **FOUR), tmp_path) as process:
        process.wait_ready()
        async with talking(process) as client:
            tasks = [asyncio.create_task(post(client, "Hello", max_tokens=100)) for _ in range(40)]
            await until(lambda: sum(task.done() for task in tasks) >= 28)
            async with asyncio.timeout(5):
                while await gauges(client) != (4, 8):  # published once a step
                    assert sum(task.done() for task in tasks) == 28
            assert (await client.get("/health")).status_code == 200
            answers = [await task for task in tasks]
            taken = [when for answer, when in answers if answer.status_code == 200]
            refused = [(answer, when) for answer, when in answers if answer.status_code == 503]
            assert (len(taken), len(refused)) == (12, 28)
            assert all(answer.json()["error"]["code"] == "overloaded" and answer.headers["retry-after"] for answer, _ in refused)
            assert max(when for _, when in refused) < min(taken), "nobody who is refused waits for somebody who is not"
            assert all(answer.json()["choices"][0]["text"] for answer, _ in answers if answer.status_code == 200)
            assert (await post(client, "Hello"))[0].status_code == 200
        assert process.stop(10) == 0


@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.full)])
async def test_without_a_limit_any_number_waits_and_can_leave(model_folder: Path, tmp_path: Path, count: int) -> None:
    with running(echo_command(model_folder, **FOUR), tmp_path) as process:
        process.wait_ready()
        async with talking(process) as client:
            short = {"max_tokens": 1}
            first = asyncio.create_task(post(client, "Hello", max_tokens=100))
            tasks = [asyncio.create_task(post(client, "Hello", **(short if i % 2 else {"max_tokens": 5000}))) for i in range(count)]
            async with asyncio.timeout(20):
                while sum(await gauges(client)) < 0.8 * count:
                    await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            answers = await asyncio.gather(*tasks[1::2], first)
            assert {answer.status_code for answer, _ in answers} == {200}
            async with asyncio.timeout(10):
                while await gauges(client) != (0, 0):
                    await asyncio.sleep(0)
            many = [asyncio.create_task(post(client, "Hello", max_tokens=5000)) for _ in range(50)]
            async with asyncio.timeout(10):
                while sum(await gauges(client)) < 50:
                    await asyncio.sleep(0)
            assert await asyncio.to_thread(process.stop, 10) == 0, "a stop works with requests that wait"
            await asyncio.gather(*many, return_exceptions=True)


def with_files(count: int, command: list[str]) -> list[str]:
    """The same command in a process that may open so many files."""
    return ["bash", "-c", f'ulimit -n {count}; exec "$@"', "_", *command]


@pytest.mark.parametrize(
    ("topology", "files", "count"),
    [("v1", 256, 400), ("rpc", 256, 400), *(pytest.param(name, 1024, 1500, marks=pytest.mark.full) for name in ("v1", "rpc", "rpc_proxy"))],
)
async def test_more_at_once_than_there_are_files(topology: str, files: int, count: int, model_folder: Path, tmp_path: Path) -> None:
    """Who finds no file waits for one; who has one is answered, by a refusal where the layout cannot take more. Then all is as before."""
    with running(with_files(files, echo_command(model_folder, topology=topology)), tmp_path) as process:
        server, engine = psutil.Process(process.wait_ready().popen.pid), psutil.Process(process.engine_pid)
        async with talking(process) as client:  # some files are opened by the first request
            assert (await post(client, "Hello"))[0].status_code == 200
        await asyncio.to_thread(until_sync, lambda: len(server.net_connections("tcp")) == 1)
        before = server.num_fds(), engine.num_fds()
        async with talking(process) as client:
            answers = [answer for answer, _ in await asyncio.gather(*(post(client, "Hello", max_tokens=1) for _ in range(count)))]
        statuses = Counter(answer.status_code for answer in answers)
        assert set(statuses) <= ({200, 503} if topology.startswith("rpc") else {200}), statuses
        assert all("Too many open files" in answer.json()["error"]["message"] for answer in answers if answer.status_code == 503)
        assert statuses[200] > files // 8
        await until(lambda: server.num_fds() <= before[0] and engine.num_fds() <= before[1], timeout=10)
        async with talking(process) as client:
            assert (await post(client, "Hello"))[0].json()["choices"][0]["text"] == "Hello" * 20
        assert process.stop(10) == 0
