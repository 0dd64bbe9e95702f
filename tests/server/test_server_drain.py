"""What a server that is told to stop still answers: what has arrived, with a word that it goes; nothing later is lost silently."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from serving import echo_wiring

from mqlab.config import ServerConfig
from mqlab.contract.waiting import until
from mqlab.server.http.listener import listening
from mqlab.server.process.httpfront import HttpFront
from mqlab.topologies import make_client

CALL = {"prompt": "Hello", "max_tokens": 40, "ignore_eos": True}


@asynccontextmanager
async def front(model_folder: Path) -> AsyncIterator[tuple[HttpFront, tuple[str, int]]]:
    """A front whose answers take their time, and where it listens."""
    config = ServerConfig(port=0)
    with listening(config) as listener:
        client = make_client("aio", echo_wiring(model_folder, device_time=0.005))
        await client.start()
        serving = HttpFront(client, None, listener, config)
        await serving.start()
        try:
            yield serving, listener.getsockname()
        finally:
            await serving.stop()


def request(path: str, body: dict[str, Any] | None = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    return b"%s %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (b"POST" if body else b"GET", path.encode(), len(content)) + content


async def connect(address: tuple[str, int], sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    return reader, writer


async def test_what_has_arrived_is_answered_and_told_that_the_server_goes(model_folder: Path) -> None:
    async with front(model_folder) as (serving, address), asyncio.timeout(20):
        expected = {
            ("/health", None): b"200 OK",
            ("/ready", None): b"503 Service Unavailable",
            ("/v1/models", None): b"200 OK",
            ("/v1/completions", json.dumps(CALL)): b"503 Service Unavailable",
        }
        known = [await connect(address) for _ in expected]
        for (_, writer), (path, body) in zip(known, expected, strict=True):
            writer.write(request(path, None if body is None else json.loads(body)))
        refusing = asyncio.create_task(serving.refuse())
        for (reader, writer), status in zip(known, expected.values(), strict=True):
            said = await reader.read()  # to its end: the connection is closed behind the answer
            assert said.startswith(b"HTTP/1.1 " + status), said
            assert b"connection: close" in said
            writer.close()
        await refusing
        await serving.drained()
        with pytest.raises(OSError):
            await connect(address)


async def test_streams_go_on_to_their_end_and_then_their_connection_does(model_folder: Path) -> None:
    async with front(model_folder) as (serving, address), asyncio.timeout(20):
        reader, writer = await connect(address, request("/v1/completions", {**CALL, "stream": True}))
        idle, closing = await connect(address, request("/health"))
        await reader.readuntil(b"data: ")
        await idle.readuntil(b"\r\n\r\n")
        await serving.refuse()
        await serving.drained()
        await serving.stop()
        assert (await reader.read()).rstrip().endswith(b"data: [DONE]\n\n\r\n0")
        assert b"HTTP" not in await idle.read(), "closed without a word"
        writer.close()
        closing.close()


async def test_who_waits_in_the_socket_when_it_closes_is_answered(model_folder: Path) -> None:
    """Hundreds that the server has not come to yet: closing the socket would reset them all."""
    async with front(model_folder) as (serving, address), asyncio.timeout(20):
        late = await asyncio.gather(*(connect(address, request("/v1/completions", CALL)) for _ in range(200)))
        await asyncio.gather(serving.refuse(), serving.drained())
        answers = await asyncio.gather(*(reader.readline() for reader, _ in late))
        assert all(line in (b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 503 Service Unavailable\r\n") for line in answers)
        for _, writer in late:
            writer.close()
        await until(lambda: not serving._host.connections)
