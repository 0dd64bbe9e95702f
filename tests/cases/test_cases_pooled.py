"""C78: an idle connection outlives the pools of clients, and one that ends loses no request. C06: who leaves is missed behind keys, too."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Served, serving

from mqlab.config import ServerConfig
from mqlab.contract.waiting import until
from mqlab.server.http.host import Host
from mqlab.server.http.listener import listening
from mqlab.server.openai.stream import respond

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POOLS_S = 60
"""The longest that a common client keeps an idle connection: aiohttp 15 s, urllib3 and httpx 5 s, nginx to its upstreams 60 s."""


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Says yes."""
    await respond(send, 200, b"1")


def whole(client: socket.socket) -> bytes:
    """One answer: head and body may come apart."""
    said = b""
    while not said.endswith(b"\r\n\r\n1") and (more := client.recv(1000)):
        said += more
    return said


def test_by_default_connections_outlive_the_pools_of_clients() -> None:
    assert ServerConfig().keep_alive > POOLS_S


@pytest.mark.parametrize("spoken", [False, True], ids=["fresh", "used"])
async def test_an_idle_connection_ends_when_its_time_is_over_and_not_before(spoken: bool) -> None:
    """The loop's clock is turned on, so that nobody waits."""
    loop = asyncio.get_running_loop()
    config = ServerConfig(port=0, keep_alive=75)
    with listening(config) as listener:
        host = Host(answer, listener, config)
        await host.start()
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        await until(lambda: host.connections)
        (connection,) = host.connections
        if spoken:
            writer.write(GET)
            assert await reader.readexactly(12) == b"HTTP/1.1 200"
            await until(lambda: connection.timeout_keep_alive_task is not None)
        due = connection.timeout_keep_alive_task.when() - loop.time()
        assert POOLS_S < due <= 75
        connection.timeout_keep_alive_handler()
        assert (await reader.read()).partition(b"\r\n\r\n1")[2] == b"", "closed in peace"
        writer.close()
        await host.stop(1.0)


async def test_a_request_that_arrives_as_the_connection_ends_is_answered() -> None:
    config = ServerConfig(port=0, keep_alive=75)
    with listening(config) as listener:
        host = Host(answer, listener, config)
        await host.start()
        with socket.create_connection(listener.getsockname()) as client:
            await until(lambda: host.connections)
            (connection,) = host.connections
            for end in (connection.timeout_keep_alive_handler, connection.shutdown):
                # The request is in the socket before the server comes to close it, which is told first.
                client.sendall(GET)
                end()
                async with asyncio.timeout(5):
                    said = await asyncio.to_thread(whole, client)
                assert said.startswith(b"HTTP/1.1 200")
                assert host.connections, "and lives on"
        await host.stop(1.0)


GUARDED = {"api_key": ("sk-right",), "allowed_origins": ("*",), "limit_per_key": 9, "max_pending": 9, "limit_concurrency": 9}


@pytest.mark.parametrize("body", [{}, {"n": 3}, {"stream": True}], ids=str)
async def test_leaving_aborts_behind_every_guard(model_folder: Path, body: dict[str, Any]) -> None:
    """One runs, the others wait: nothing of a request is left in the engine when its client has gone."""
    async with serving(model_folder, "v1", server=GUARDED, device_time=0.01, max_num_seqs=1) as served:
        runs, waits = [await send(served, body) for _ in range(2)]
        choices = body.get("n", 1)
        await until(lambda: (served.stats.running, served.stats.waiting) == (1, 2 * choices - 1))
        for writer, left in ((waits, choices), (runs, 0)):
            writer.close()
            await writer.wait_closed()
            await until(lambda left=left: served.stats.running + served.stats.waiting == left)
        await until(lambda: served.stats.blocks_used == 0)
        generated = served.stats.generation_tokens
        async with httpx.AsyncClient(base_url=served.url, headers={"authorization": "Bearer sk-right"}) as client:
            assert (await client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 3})).status_code == 200
        await until(lambda: served.stats.generation_tokens >= generated + 3)
        assert served.stats.generation_tokens == generated + 3


async def send(served: Served, body: dict[str, Any]) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    content = json.dumps({"prompt": "Hello world", "max_tokens": 2000, "ignore_eos": True, **body}).encode()
    headers = b"host: x\r\norigin: https://a.example\r\nauthorization: Bearer sk-right\r\ncontent-length: %d" % len(content)
    writer.write(b"POST /v1/completions HTTP/1.1\r\n" + headers + b"\r\n\r\n" + content)
    await writer.drain()
    return writer
