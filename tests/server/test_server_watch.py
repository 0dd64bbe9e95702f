"""Whether the server lives, whether it takes requests, how busy it is: /health, /ready, /ping, /load, /version."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Served, serving

from mqlab.contract.waiting import until

LONG = {"prompt": "Hello", "max_tokens": 5000, "ignore_eos": True}


async def states(client: httpx.AsyncClient) -> tuple[int, int, str | None]:
    """Status of /health, status and reason of /ready."""
    health, ready = await client.get("/health"), await client.get("/ready")
    assert (await client.get("/ping")).status_code == (await client.post("/ping")).status_code == health.status_code
    assert ready.json()["ready"] == (ready.status_code == 200)
    return health.status_code, ready.status_code, ready.json()["reason"]


async def test_a_server_that_can_serve(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        assert await states(client) == (200, 200, None)
        assert (await client.get("/version")).json() == {"version": version("mqlab")}
        assert (await client.get("/load")).json() == {"server_load": 0, "running": 0, "waiting": 0}
        assert (await client.head("/health")).status_code == 200


@pytest.mark.parametrize("setting", [{"limit_concurrency": 3}, {"max_pending": 1}])
async def test_a_full_server_lives_but_takes_nothing(model_folder: Path, setting: dict[str, Any]) -> None:
    async with (
        serving(model_folder, server=setting, device_time=0.005, max_num_seqs=2) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        tasks = [asyncio.create_task(client.post("/v1/completions", json=LONG)) for _ in range(3)]
        await until(lambda: (served.stats.running, served.stats.waiting) == (2, 1))
        assert await states(client) == (200, 503, "full")
        assert (await client.get("/ready")).headers["retry-after"] == "1"
        assert (await client.get("/load")).json() == {"server_load": 3, "running": 2, "waiting": 1}
        assert (await client.post("/v1/completions", json=LONG)).status_code == 503, "readiness was right"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: served.stats.running == served.state.open == 0)
        assert await states(client) == (200, 200, None)


@pytest.mark.parametrize(("put_away", "reason"), [("unload", "unloaded"), ("sleep", "asleep")])
async def test_without_a_model(model_folder: Path, put_away: str, reason: str) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        await getattr(served.client, put_away)()
        assert await states(client) == (200, 503, reason)


async def test_while_a_model_loads(model_folder: Path) -> None:
    async with serving(model_folder, "v1") as served, httpx.AsyncClient(base_url=served.url) as client:
        loading = asyncio.create_task(served.client.load("second", path=str(model_folder), load_time=1.0))
        seen = set()
        while not loading.done():
            seen.add(await states(client))
        await loading
        assert await states(client) == (200, 200, None)
    assert (200, 503, "loading") in seen
    assert {health for health, _, _ in seen} == {200}


async def test_while_it_drains(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        served.state.draining = True
        assert await states(client) == (200, 503, "draining")


async def test_a_dead_engine(model_folder: Path) -> None:
    async with serving(model_folder, "v1") as served, httpx.AsyncClient(base_url=served.url) as client:
        await kill(served)
        assert await states(client) == (503, 503, "dead")


async def kill(served: Served) -> None:
    import os
    import signal

    os.kill(served.client.info.pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        await served.client.ended()
