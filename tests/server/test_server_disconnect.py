"""A client that leaves needs no more tokens: streamed, whole, queued, or many at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Served, serving

from mqlab.contract.waiting import until

SLOW = {"device_time": 0.01, "max_num_seqs": 8}


async def send(served: Served, body: dict[str, Any]) -> asyncio.StreamWriter:
    """Post a body and leave the connection open, unread."""
    _, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    content = json.dumps({"prompt": "Hello world", "max_tokens": 2000, "ignore_eos": True, **body}).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(content) + content)
    await writer.drain()
    return writer


async def leave(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        await writer.wait_closed()


def busy(served: Served) -> int:
    return served.stats.running + served.stats.waiting


def idle(served: Served) -> bool:
    return busy(served) == 0 and served.stats.blocks_used == 0


@pytest.mark.parametrize("topology", ["aio", "v1"])
@pytest.mark.parametrize("body", [{}, {"stream": True}, {"n": 3}, {"prompt": ["a", "b", "c"], "n": 2}], ids=str)
async def test_leaving_aborts(model_folder: Path, topology: str, body: dict[str, Any]) -> None:
    choices = body.get("n", 1) * (3 if "prompt" in body else 1)
    async with serving(model_folder, topology, **SLOW) as served:
        writer = await send(served, body)
        await until(lambda: served.stats.running == choices and served.stats.generation_tokens > 2 * choices)
        await leave(writer)
        await until(lambda: idle(served))
        assert (await served.client.stats()).finished["abort"] == choices
        await until(lambda: served.state.metrics.finished["abort"] == choices)
        generated = served.stats.generation_tokens
        async with httpx.AsyncClient(base_url=served.url) as client:
            answer = await client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 3})
        assert answer.json()["choices"][0]["text"] == "HelloHelloHello"
        await until(lambda: served.stats.generation_tokens >= generated + 3)
        assert served.stats.generation_tokens == generated + 3


async def test_leaving_while_waiting_for_room_aborts(model_folder: Path) -> None:
    async with serving(model_folder, "v1", device_time=0.01, max_num_seqs=1) as served:
        runs = await send(served, {})
        await until(lambda: served.stats.running == 1)
        waits = await send(served, {})
        await until(lambda: served.stats.waiting == 1)
        await leave(waits)
        await until(lambda: served.stats.waiting == 0)
        assert served.stats.running == 1
        await leave(runs)
        await until(lambda: idle(served))
        assert (await served.client.stats()).finished["abort"] == 2


async def test_a_body_that_never_ends_is_forgotten_with_its_client(model_folder: Path) -> None:
    async with serving(model_folder) as served:
        _, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        drained = asyncio.create_task(served.state.drained())
        await leave(writer)
        async with asyncio.timeout(5):
            await drained
