"""Servers as processes: they start or refuse in time, and stop in bounded time whatever their clients do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from serving import FAST, Process, accepts, echo_command, mqlab_command, running

from mqlab.contract.processes import ended, gone
from mqlab.contract.waiting import until, until_sync

LONG: dict[str, Any] = {"prompt": "Hello world", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
SLOW = {"device_time": 0.005, "max_model_len": 10**6, "num_blocks": 10**5}


def post_unread(url: str, body: dict[str, Any]) -> socket.socket:
    """A connection with a request whose answer nobody reads."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    content = json.dumps(body).encode()
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(content) + content)
    return connection


async def read_to_the_end(url: str) -> str:
    async with httpx.AsyncClient(base_url=url, timeout=30) as client, client.stream("POST", "/v1/completions", json=LONG) as response:
        return "".join([text async for text in response.aiter_text()])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_during_streams_is_an_orderly_stop(model_folder: Path, tmp_path: Path, number: int) -> None:
    with running(echo_command(model_folder, **SLOW), tmp_path) as process:
        process.wait_ready()
        streams = [asyncio.create_task(read_to_the_end(process.url)) for _ in range(5)]
        deaf = post_unread(process.url, {**LONG, "n": 50})
        async with httpx.AsyncClient(base_url=process.url) as client:
            assert not gone(process.engine_pid)
            await _until_running(client, 55)
        process.popen.send_signal(number)
        started = time.monotonic()
        texts = await asyncio.gather(*streams)
        assert await asyncio.to_thread(process.popen.wait, 10) == 0
        # The bound that is promised is drain_timeout, here 1 s, and three seconds more; the rest is for a busy machine.
        assert time.monotonic() - started < 8
        deaf.close()
        assert all("shutting down" in text.split("\n\n")[-2] for text in texts)
        assert gone(process.engine_pid)
        assert "Traceback" not in process.text()


async def _until_running(client: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(20):
        while f'num_requests_running{{engine="0",model_name="echo"}} {count}.0' not in (await client.get("/metrics")).text:
            await asyncio.sleep(0)


async def test_short_streams_finish_while_the_server_drains(model_folder: Path, tmp_path: Path) -> None:
    with running(echo_command(model_folder, drain_timeout=20.0, **SLOW), tmp_path) as process:
        process.wait_ready()
        async with httpx.AsyncClient(base_url=process.url, timeout=30) as client:
            body = {**LONG, "max_tokens": 300, "stream": False}
            answer = asyncio.create_task(client.post("/v1/completions", json=body))
            await _until_running(client, 1)
            process.popen.send_signal(signal.SIGTERM)
            assert (await answer).json()["usage"]["completion_tokens"] == 300
        assert await asyncio.to_thread(process.popen.wait, 10) == 0


async def test_a_second_signal_does_not_wait_for_streams(model_folder: Path, tmp_path: Path) -> None:
    with running(echo_command(model_folder, drain_timeout=100.0, **SLOW), tmp_path) as process:
        process.wait_ready()
        stream = asyncio.create_task(read_to_the_end(process.url))
        async with httpx.AsyncClient(base_url=process.url) as client:
            await _until_running(client, 1)
        process.popen.send_signal(signal.SIGTERM)
        await until(lambda: not accepts(process.url))
        process.popen.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.popen.wait, 10) == 0
        assert "shutting down" in await stream


async def test_a_stopped_engine_does_not_hold_up_the_stop(model_folder: Path, tmp_path: Path) -> None:
    with running(echo_command(model_folder, timing=replace(FAST, stopped_limit=60), **SLOW), tmp_path) as process:
        process.wait_ready()
        stream = asyncio.create_task(read_to_the_end(process.url))
        async with httpx.AsyncClient(base_url=process.url) as client:
            await _until_running(client, 1)
        os.kill(process.engine_pid, signal.SIGSTOP)
        process.popen.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.popen.wait, 10) == 0
        assert "shutting down" in await stream
        assert gone(process.engine_pid)


def test_whoever_connects_too_early_waits_for_the_answer(model_folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with running(echo_command(model_folder, port=port), tmp_path) as process:
        until_sync(lambda: accepts(f"http://127.0.0.1:{port}"), timeout=30)
        response = httpx.get(f"http://127.0.0.1:{port}/health", timeout=60)
        assert response.status_code == 200
        process.wait_ready()
        assert process.stop(10) == 0


def engines_below(server: psutil.Process) -> list[psutil.Process]:
    """Not the short-lived commands that tell a recording what machine it is on."""
    with suppress(psutil.NoSuchProcess):
        return [child for child in server.children() if "mqlab.wire.boot" in child.cmdline()]
    return []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_loads_is_an_orderly_stop(tmp_path: Path, number: int) -> None:
    with running(mqlab_command("serve", "smollm2-135m", "--port", "0"), tmp_path) as process:
        server = psutil.Process(process.popen.pid)
        until_sync(lambda: engines_below(server), timeout=30)
        (engine,) = engines_below(server)
        process.popen.send_signal(number)
        assert process.popen.wait(10) == 0
        assert ended(engine)
        assert "Traceback" not in process.text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/no/such/model"], "no folder or file at '/no/such/model'"),
        (["smollm2-135m", "--max-model-len", "100000"], "100000"),
        (["smollm2-135m", "--host", "no.such.host.invalid"], "no.such.host.invalid"),
    ],
)
def test_bad_input_is_told_in_few_lines(tmp_path: Path, arguments: list[str], words: str) -> None:
    with running(mqlab_command("serve", *arguments, "--port", "0"), tmp_path) as process:
        assert process.popen.wait(60) == 1
        message = process.text()
    assert words in message
    assert "mqlab: " in message.splitlines()[-1]
    assert "Traceback" not in message


def ask(process: Process, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{process.url}/v1/chat/completions", json=body, timeout=60)


def test_the_real_model_answers_over_http(tmp_path: Path) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 12}
    command = mqlab_command("serve", "smollm2-135m", "--port", "0", "--topology", "v1", "--num-threads", "1", "--kv-cache-gb", "0.1")
    with running(command, tmp_path) as process:
        process.wait_ready(90)
        assert process.line is not None
        assert (process.line[1], process.line[3]) == ("smollm2-135m", "v1")
        first = ask(process, body).json()
        again = ask(process, body).json()
        streamed = ask(process, {**body, "stream": True}).text
        fact = httpx.post(f"{process.url}/v1/completions", json={"prompt": "The capital of France is", "temperature": 0, "max_tokens": 2})
        assert process.stop(10) == 0
    text = first["choices"][0]["message"]["content"]
    assert text
    assert fact.json()["choices"][0]["text"] == " Paris."
    assert again["choices"] == first["choices"]
    events = [json.loads(block.removeprefix("data: ")) for block in streamed.split("\n\n")[:-2]]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == text
