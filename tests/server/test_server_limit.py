"""--limit-concurrency: more requests than that are refused at once, with a hint; whatever generates nothing is not limited."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from serving import Served, serving

from mqlab.config import ServerConfig
from mqlab.contract.waiting import until
from mqlab.errors import ConfigError

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"prompt": "Hello", "max_tokens": 5000, "ignore_eos": True}


async def fill(served: Served, client: httpx.AsyncClient, count: int) -> list[asyncio.Task[httpx.Response]]:
    """So many requests that go on."""
    tasks = [asyncio.create_task(client.post(COMPLETIONS, json=LONG)) for _ in range(count)]
    await until(lambda: served.stats.running == count)
    return tasks


async def leave(tasks: list[asyncio.Task[httpx.Response]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_more_is_refused_with_a_hint(model_folder: Path) -> None:
    async with serving(model_folder, device_time=0.005) as served, httpx.AsyncClient(base_url=served.url) as client:
        served.client.limit = 2
        tasks = await fill(served, client, 2)
        bodies: list[tuple[str, dict[str, Any]]] = [
            (COMPLETIONS, {"prompt": "x"}),
            (CHAT, {"messages": [{"role": "user", "content": "x"}]}),
        ]
        for path, body in bodies:
            for stream in (False, True):
                refused = await client.post(path, json={**body, "stream": stream})
                error = refused.json()["error"]
                assert (refused.status_code, error["code"], error["type"]) == (503, "overloaded", "service_unavailable_error")
                assert refused.headers["retry-after"] == "1"
                assert "2 requests are open" in error["message"]
        for path in ("/health", "/metrics", "/v1/models"):
            assert (await client.get(path)).status_code == 200
        page = (await client.get("/metrics")).text
        await leave(tasks)
        await until(lambda: served.stats.running == 0)
        assert (await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1})).status_code == 200
    assert 'num_requests_running{engine="0",model_name="echo"} 2.0' in page
    failed = re.findall(r'request_success_total{[^}]*finished_reason="error"[^}]*} (\S+)', page)
    assert set(failed) <= {"0.0"}, "a refusal is no failure"


async def test_each_choice_counts_and_none_of_a_refused_request_goes_on(model_folder: Path) -> None:
    async with serving(model_folder, device_time=0.005) as served, httpx.AsyncClient(base_url=served.url) as client:
        served.client.limit = 3
        tasks = await fill(served, client, 1)
        assert (await client.post(COMPLETIONS, json={**LONG, "n": 3, "temperature": 1})).status_code == 503
        await until(lambda: len(served.client.streams) == 1)
        await leave(tasks)
        await until(lambda: not served.client.streams)
        assert (await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1, "n": 3, "temperature": 1})).status_code == 200


async def test_what_could_not_run_alone_is_refused_for_good(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        served.client.limit = 3
        for body in ({"prompt": "x", "n": 4}, {"prompt": ["x", "y"], "n": 2}):
            answer = await client.post(COMPLETIONS, json={**body, "max_tokens": 1, "temperature": 1})
            assert answer.status_code == 400 and "at most 3" in answer.json()["error"]["message"]


async def test_openais_client_tries_again_by_itself(model_folder: Path) -> None:
    async with serving(model_folder, device_time=0.005) as served, httpx.AsyncClient(base_url=served.url) as plain:
        served.client.limit = 1
        tasks = await fill(served, plain, 1)
        async with served.openai() as client:
            with pytest.raises(openai.InternalServerError, match="1 requests are open") as caught:
                await client.completions.create(model="echo", prompt="x", max_tokens=1)
            assert caught.value.status_code == 503
            patient = client.with_options(max_retries=3)
            asyncio.get_running_loop().call_later(0.1, lambda: [task.cancel() for task in tasks])
            answer = await patient.completions.create(model="echo", prompt="Hello", max_tokens=1)
            assert answer.choices[0].text == "Hello"
        await leave(tasks)


def test_the_flag_wants_at_least_one() -> None:
    assert ServerConfig().limit_concurrency is None
    for wrong in (0, -1):
        with pytest.raises(ConfigError, match=f"--limit-concurrency={wrong} must be above 0"):
            ServerConfig(limit_concurrency=wrong)
