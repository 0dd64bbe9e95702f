"""Who gets in while others wait: --max-pending, --limit-per-key, --max-body-mb. What is refused gets an answer, and an orchestrator is
never refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import Served, serving

from mqlab.client.pending import pending
from mqlab.contract.waiting import until
from mqlab.server.errors import ApiError
from mqlab.server.http.shares import Shares
from mqlab.types import EngineStats

COMPLETIONS = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "Hello", "max_tokens": 5000, "ignore_eos": True}
WATCHED = ("/health", "/ping", "/metrics", "/v1/models")


def post(client: httpx.AsyncClient, key: str = "none", **body: Any) -> asyncio.Task[httpx.Response]:
    headers = {"authorization": f"Bearer {key}"}
    return asyncio.create_task(client.post(COMPLETIONS, json={**LONG, **body}, headers=headers))


async def leave(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("topology", [pytest.param("aio", marks=pytest.mark.full), "v1"])
async def test_so_many_may_wait_and_no_more(model_folder: Path, topology: str) -> None:
    """In a burst, too, of which the engine has told nothing yet: with 2 places and 3 that may wait, 5 get in."""
    async with (
        serving(model_folder, topology, server={"max_pending": 3}, device_time=0.01, max_num_seqs=2) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        burst = [post(client) for _ in range(12)]
        await until(lambda: sum(task.done() for task in burst) == 7)
        refused = [task.result() for task in burst if task.done()]
        for answer in refused:
            assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
            assert "3 requests wait for the engine" in answer.json()["error"]["message"]
        await until(lambda: (served.stats.running, served.stats.waiting) == (2, 3))
        for path in WATCHED:
            assert (await client.get(path)).status_code == 200
        await leave(*burst)
        await until(lambda: not served.client.streams)
        assert (await post(client, max_tokens=1)).status_code == 200


async def test_none_may_wait_and_all_places_are_taken_all_the_same(model_folder: Path) -> None:
    async with (
        serving(model_folder, server={"max_pending": 0}, device_time=0.01, max_num_seqs=2) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        tasks = [post(client) for _ in range(3)]
        await until(lambda: served.stats.running == 2 and any(task.done() for task in tasks))
        assert [task.result().status_code for task in tasks if task.done()] == [503]
        await leave(*tasks)
        await until(lambda: not served.client.streams)
        assert (await post(client, n=2, max_tokens=1)).status_code == 200
        never = await post(client, n=3, max_tokens=1)
        assert never.status_code == 400 and "at most 2" in never.json()["error"]["message"], "to try it again would not help"


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(1, 50))
def test_pending_is_what_the_engine_tells_and_what_finds_no_place(running: int, waiting: int, untold: int, at_once: int) -> None:
    stats = EngineStats(running=min(running, at_once), waiting=waiting)
    found = pending(stats.running + waiting + untold, stats, at_once)
    assert waiting <= found <= waiting + untold
    assert found >= stats.running + waiting + untold - at_once, "who finds no place waits"


async def test_a_key_has_its_share_and_others_have_theirs(model_folder: Path) -> None:
    server = {"api_key": ("sk-one", "sk-two"), "limit_per_key": 2}
    async with serving(model_folder, server=server, device_time=0.01) as served, httpx.AsyncClient(base_url=served.url) as client:
        tasks = [post(client, "sk-one") for _ in range(2)]
        await until(lambda: served.stats.running == 2)
        refused = await post(client, "sk-one")
        error = refused.json()["error"]
        assert (refused.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
        assert refused.headers["retry-after"] == "1" and "sk-one" not in error["message"]
        assert (await post(client, "sk-two", max_tokens=1)).status_code == 200
        assert (await client.get("/v1/models", headers={"authorization": "Bearer sk-one"})).status_code == 200
        assert (await post(client, "wrong")).status_code == 401
        page = (await client.get("/metrics")).text
        await leave(tasks[0])
        await until(lambda: served.stats.running == 1)
        assert (await post(client, "sk-one", max_tokens=1)).status_code == 200
        await leave(*tasks)
    assert 'reason="rate_limit_exceeded"} 1.0' in page


def test_shares_that_nobody_has_take_no_memory() -> None:
    shares = Shares(1)
    with shares.one_of(b"a"), shares.one_of(b"b"), pytest.raises(ApiError), shares.one_of(b"a"):
        pass
    assert not shares._open


async def parts(size: int) -> Any:
    for _ in range(0, size, 1 << 16):
        yield b"x" * (1 << 16)


async def test_a_body_that_is_too_long_is_answered_before_it_is_read(model_folder: Path) -> None:
    async with serving(model_folder, server={"max_body_mb": 0.5}) as served, httpx.AsyncClient(base_url=served.url) as client:
        fits = {"prompt": "x", "max_tokens": 1, "user": "y" * 400_000}
        for path in (COMPLETIONS, "/tokenize"):
            # Told by its length; then so long that it is known only on the way.
            contents: list[Any] = [b"x" * 600_000, parts(1 << 20)]
            for content in contents:
                answer = await client.post(path, content=content, headers={"content-type": "application/json"})
                assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_long"), path
        assert (await client.post(COMPLETIONS, json=fits)).status_code == 200
        assert await _asked_first(served) == b"HTTP/1.1 413 Request Entity Too Large\r\n"


async def test_bodies_that_are_only_half_there_are_bounded_together(model_folder: Path) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    async with asyncio.timeout(30), serving(model_folder, server={"max_body_mb": 0.25}) as served:
        streams = [await asyncio.open_connection(*served.url.removeprefix("http://").split(":")) for _ in range(8)]
        for _, writer in streams:  # five of them are nearly four of the greatest length
            writer.write(head + b"%x\r\n%b\r\n" % (200_000, b" " * 200_000))
        said = {asyncio.create_task(reader.readuntil(b"\r\n\r\n")): number for number, (reader, _) in enumerate(streams)}
        refused: set[int] = set()
        while len(refused) < 3:
            done, _ = await asyncio.wait(said.keys() - {one for one in said if said[one] in refused}, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                assert one.result().startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in one.result()
                refused.add(said[one])
        for one, number in said.items():
            if number not in refused:
                streams[number][1].write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
                assert (await one).startswith(b"HTTP/1.1 200 ")
        for _, writer in streams:
            writer.close()


async def _asked_first(served: Served) -> bytes:
    """Who sends a body only when it may: it is told at once, and the connection ends, for it may send it or not."""
    reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 600000\r\n\r\n")
    said = await reader.read()
    writer.close()
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_long"
    return said.splitlines(keepends=True)[0]
