"""The engine is killed: every call ends with an error at once, and the server says what happened."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from serving import echo_command, running, serving
from waiting import until

LONG: dict[str, Any] = {"prompt": "Hello world", "max_tokens": 5000}
SLOW = {"device_time": 0.01, "max_num_seqs": 2}


async def read_stream(client: httpx.AsyncClient) -> list[str]:
    async with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
        return [line async for line in response.aiter_lines() if line]


@pytest.mark.parametrize("topology", ["v1", "mq"])
async def test_stream_whole_and_queued_calls_end_with_an_error(model_folder: Path, topology: str) -> None:
    async with serving(model_folder, topology, **SLOW) as served, httpx.AsyncClient(base_url=served.url, timeout=20) as client:
        assert (await client.get("/health")).status_code == 200
        stream = asyncio.create_task(read_stream(client))
        await until(lambda: served.stats.running == 1)
        whole = asyncio.create_task(client.post("/v1/completions", json=LONG))
        await until(lambda: served.stats.running == 2)
        queued = asyncio.create_task(client.post("/v1/completions", json=LONG))
        await until(lambda: served.stats.waiting == 1)
        os.kill(served.client.info.pid, signal.SIGKILL)
        async with asyncio.timeout(5):
            *events, last = await stream
            answers = await asyncio.gather(whole, queued)
            fresh = await client.post("/v1/completions", json=LONG)
        health = await client.get("/health")
        metrics = await client.get("/metrics")
    assert len(events) > 1
    assert "SIGKILL" in json.loads(last.removeprefix("data: "))["error"]["message"]
    for answer in [*answers, fresh]:
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_dead"
    assert health.status_code == 503
    assert "SIGKILL" in health.json()["detail"]
    assert metrics.status_code == 200
    assert 'finished_reason="error",model_name="echo"} 4.0' in metrics.text


async def test_the_official_client_raises_in_the_middle_of_a_stream(model_folder: Path) -> None:
    async with serving(model_folder, "v1", **SLOW) as served, served.openai() as client:
        stream = await client.completions.create(model="echo", stream=True, **LONG)
        with pytest.raises(openai.APIError, match="SIGKILL"):
            async for _ in stream:
                os.kill(served.client.info.pid, signal.SIGKILL)


def test_the_server_ends_too_after_it_has_told_its_clients(model_folder: Path, tmp_path: Path) -> None:
    with running(echo_command(model_folder), tmp_path) as process:
        process.wait_ready()
        os.kill(process.engine_pid, signal.SIGKILL)
        with httpx.Client(base_url=process.url) as client:
            refused = client.post("/v1/completions", json=LONG)
        assert refused.status_code == 503
        assert process.popen.wait(10) == 1
        assert "EngineDeadError: the engine died" in process.text()
        assert "Traceback" not in process.text()
