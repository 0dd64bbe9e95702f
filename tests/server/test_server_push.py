"""Streams written straight to their connections: the same bytes as any other way, whatever their readers and connections do."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Process, Served, echo_server, serving

from mqlab.contract.waiting import until
from mqlab.server.app import build_app

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def head(body: dict[str, Any], path: str = COMPLETIONS, version: str = "1.1", extra: str = "") -> bytes:
    """A whole request."""
    content = json.dumps(body).encode()
    return f"POST {path} HTTP/{version}\r\nhost: x\r\n{extra}content-length: {len(content)}\r\n\r\n".encode() + content


@asynccontextmanager
async def connection(served: Served | Process, **options: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare one to the server."""
    reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"), **options)
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def chunked(reader: asyncio.StreamReader) -> tuple[bytes, list[bytes]]:
    """The head of a response, and its chunks, read strictly as HTTP/1.1 has them."""
    async with asyncio.timeout(20):
        top = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in top
        chunks: list[bytes] = []
        while size := int(await reader.readline(), 16):
            chunks.append(await reader.readexactly(size))
            assert await reader.readexactly(2) == b"\r\n"
        assert await reader.readexactly(2) == b"\r\n"
    return top, chunks


def texts(data: bytes) -> dict[int, str]:
    """The text of each choice of a stream of completions."""
    found: dict[int, str] = {}
    for block in data.decode().split("\n\n")[:-2]:
        for choice in json.loads(block.removeprefix("data: "))["choices"]:
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return found


AWKWARD = 'naïve 🙂🙂 日本語 "quoted" \\ back \n\t\x00 </s> – ok 👩‍👩‍👧 עברית'


BODIES: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": AWKWARD}),
    (COMPLETIONS, {"prompt": AWKWARD, "stop": ["語 ", "zzz"]}),
    (COMPLETIONS, {"prompt": AWKWARD, "logprobs": 2}),
    (COMPLETIONS, {"prompt": [AWKWARD, "ab cd"], "n": 2, "stream_options": {"include_usage": True}}),
    (COMPLETIONS, {"prompt": AWKWARD, "echo": True, "n": 2}),
    (COMPLETIONS, {"prompt": AWKWARD, "echo": True, "logprobs": 1}),
    (COMPLETIONS, {"prompt": [0, 1, 2, 5, 49151], "skip_special_tokens": False}),
    (CHAT, {"messages": [{"role": "user", "content": AWKWARD}], "n": 2}),
    (CHAT, {"messages": [{"role": "user", "content": AWKWARD}], "logprobs": True}),
]


async def test_streams_say_what_those_of_a_plain_asgi_server_say(model_folder: Path) -> None:
    """The same application behind a host that has no lines: every choice has the same text, scores and end."""
    async with serving(model_folder) as served:
        transport = httpx.ASGITransport(build_app(served.state))
        async with httpx.AsyncClient(base_url=served.url) as direct, httpx.AsyncClient(transport=transport, base_url="http://x") as plain:
            for path, body in BODIES:
                whole = {**body, "max_tokens": 90, "temperature": 0 if body.get("n", 1) == 1 else 1, "stream": True}
                answers = [await client.post(path, json=whole) for client in (direct, plain)]
                assert [answer.status_code for answer in answers] == [200, 200], body
                assert _joined(answers[0].content) == _joined(answers[1].content), body


def _joined(stream: bytes) -> list[str]:
    """What a stream says, however it was cut: by choice the text, everything else as it is."""
    said: dict[Any, Any] = {}
    ends: list[str] = []
    for block in stream.decode().split("\n\n"):
        if not block.startswith("data: {"):
            ends.append(block)
            continue
        event = json.loads(block.removeprefix("data: "))
        for choice in event["choices"]:
            text = choice.get("text") if "text" in choice else choice["delta"].get("content", "")
            own = said.setdefault(choice["index"], ["", "", []])
            own[0] += text
            own[1] += str(choice["finish_reason"] or "")
            own[2] += (choice["logprobs"] or {}).get("tokens", (choice["logprobs"] or {}).get("content")) or []
        if event.get("usage"):
            ends.append(str(event["usage"]))
    return [f"{index}: {value}" for index, value in sorted(said.items())] + ends


async def test_a_chunk_for_each_token_while_the_reader_keeps_up(model_folder: Path) -> None:
    body = {"prompt": "Hello world, this is it", "max_tokens": 50, "stream": True, "ignore_eos": True}
    async with serving(model_folder, device_time=0.001) as served, connection(served) as (reader, writer):
        writer.write(head(body))
        _, chunks = await chunked(reader)
    events = b"".join(chunks).decode().split("\n\n")
    assert events[-2] == "data: [DONE]"
    assert len(events) == 50 + 3, "a token each, the end, the marker, and what is behind the last one"


async def test_a_connection_goes_on_after_a_stream(model_folder: Path) -> None:
    body = {"prompt": "Hello world", "max_tokens": 30, "ignore_eos": True}
    async with serving(model_folder) as served, connection(served) as (reader, writer):
        for stream in (True, True, False, True):
            writer.write(head({**body, "stream": stream}))
            if stream:
                _, chunks = await chunked(reader)
                assert texts(b"".join(chunks)) == {0: "Hello world" * 15}
            else:
                top = await reader.readuntil(b"\r\n\r\n")
                length = int(re.search(rb"content-length: (\d+)", top)[1])  # type: ignore[index]
                assert json.loads(await reader.readexactly(length))["choices"][0]["text"] == "Hello world" * 15
        assert len(served.client.streams) == 0


async def test_pipelined_requests_are_answered_in_order(model_folder: Path) -> None:
    words = ["Hello", " world", " this", " is"]
    async with serving(model_folder, device_time=0.001) as served, connection(served) as (reader, writer):
        writer.write(b"".join(head({"prompt": word, "max_tokens": 5, "ignore_eos": True, "stream": True}) for word in words))
        for word in words:
            _, chunks = await chunked(reader)
            assert texts(b"".join(chunks)) == {0: word * 5}


async def test_a_reader_that_leaves_with_pipelined_requests_stops_the_one_that_runs(model_folder: Path) -> None:
    body = {"prompt": "Hello", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with serving(model_folder, device_time=0.005) as served:
        async with connection(served) as (_, writer):
            writer.write(head(body) + head(body))
            await until(lambda: served.stats.generation_tokens > 5)
        await until(lambda: served.stats.running == 0)
        assert (await served.client.stats()).finished["abort"] == 1


async def test_old_http_gets_a_body_that_ends_with_the_connection(model_folder: Path) -> None:
    body = {"prompt": "Hello world", "max_tokens": 20, "ignore_eos": True, "stream": True}
    async with serving(model_folder) as served, connection(served) as (reader, writer):
        writer.write(head(body, version="1.0"))
        async with asyncio.timeout(10):
            top, _, content = (await reader.read()).partition(b"\r\n\r\n")
    assert b"connection: close" in top and b"transfer-encoding" not in top and b"content-length" not in top
    assert content.endswith(b"data: [DONE]\n\n")
    assert texts(content) == {0: "Hello world" * 10}


@pytest.mark.parametrize("choices", [pytest.param(1, marks=pytest.mark.full), 3])
async def test_a_slow_reader_is_bounded_and_holds_nobody_up(model_folder: Path, choices: int) -> None:
    """It reads nothing while its answer is made, and others are served; little waits in buffers, and in the end it gets everything."""
    tokens = 3000 // choices
    slow = {"prompt": "Hello world", "max_tokens": tokens, "n": choices, "temperature": 1, "ignore_eos": True, "stream": True}
    async with (
        serving(model_folder, server={"max_unsent_kb": 16}) as served,
        connection(served, limit=1024) as (reader, writer),
        httpx.AsyncClient(base_url=served.url) as others,
    ):
        writer.transport.pause_reading()  # type: ignore[union-attr]
        writer.write(head(slow))
        await until(lambda: served.stats.running == choices)
        answer = await others.post(COMPLETIONS, json={"prompt": "quick", "max_tokens": 5})
        assert answer.status_code == 200
        await until(lambda: served.stats.generation_tokens >= tokens * choices + 5, timeout=20)
        writer.transport.resume_reading()  # type: ignore[union-attr]
        _, chunks = await chunked(reader)
    assert texts(b"".join(chunks)) == dict.fromkeys(range(choices), "Hello world" * (tokens // 2))
    waited = sum(map(len, chunks))
    assert waited < 300_000, "16 KiB here, what the reader's own kernel took, and the rest as text; one by one it would be 640,000"


async def test_death_in_mid_stream_is_told_where_the_stream_stands(model_folder: Path) -> None:
    body = {"prompt": "Hello", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with serving(model_folder, device_time=0.005) as served, connection(served) as (reader, writer):
        writer.write(head(body))
        await until(lambda: served.stats.generation_tokens > 5)
        served.client._die("as told")
        _, chunks = await chunked(reader)
        last = b"".join(chunks).decode().split("\n\n")[-2]
        assert json.loads(last.removeprefix("data: "))["error"]["message"] == "as told"
        writer.write(head(body))
        assert b" 503 " in await reader.readline(), "the connection is whole"


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(model_folder: Path) -> None:
    """Streams and whole answers, with several choices, cut after any number of turns of the loop."""
    rng = random.Random(5)
    async with serving(model_folder, device_time=0.001, max_num_seqs=8) as served:

        async def leave_early(turns: int) -> None:
            async with connection(served) as (_, writer):
                body = {"prompt": "Hello", "max_tokens": 4000, "ignore_eos": True, "stream": rng.random() < 0.7, "n": rng.choice((1, 3))}
                writer.write(head({**body, "temperature": 1}))
                for _ in range(turns):
                    await asyncio.sleep(0)

        await asyncio.gather(*(leave_early(rng.randrange(200)) for _ in range(40)))
        await until(lambda: served.stats.running == served.stats.waiting == 0 and not len(served.client.streams))
        async with asyncio.timeout(5):
            await served.state.drained()


async def test_an_answer_leaves_the_collector_nothing(model_folder: Path) -> None:
    """No cycles: what a request took is free when its connection is, however seldom the collector looks."""
    rounds = 20
    async with serving(model_folder) as served:

        async def one(stream: bool) -> None:
            async with connection(served) as (reader, writer):
                writer.write(
                    head({"prompt": "Hello", "max_tokens": 3, "n": 2, "temperature": 1, "stream": stream}, extra="connection: close\r\n")
                )
                await reader.read()

        for stream in (True, False):
            await one(stream)
            gc.collect()
            gc.disable()
            try:
                for _ in range(rounds):
                    await one(stream)
                await until(lambda: not len(served.client.streams))
                found = gc.collect()
            finally:
                gc.enable()
            assert found < 25 * rounds, "asyncio's own connections are some; a request beside them is a hundred more"


@pytest.mark.full
async def test_a_server_process_keeps_to_it_on_its_own_loop(model_folder: Path, tmp_path: Path) -> None:
    """uvloop's transports: several streams on one connection, one behind the other, and a slow reader."""
    short = {"prompt": "Hello", "max_tokens": 5, "ignore_eos": True, "stream": True}
    slow = {"prompt": "Hello world", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with echo_server(model_folder, tmp_path, settings={"max_unsent_kb": 16}) as process:
        async with connection(process) as (reader, writer), connection(process, limit=1024) as (late, sender):
            sender.transport.pause_reading()  # type: ignore[union-attr]
            sender.write(head(slow))
            writer.write(head(short) * 3)
            for _ in range(3):
                _, chunks = await chunked(reader)
                assert texts(b"".join(chunks)) == {0: "Hello" * 5}
            async with httpx.AsyncClient(base_url=process.url) as client:
                deadline = asyncio.get_running_loop().time() + 20
                while not re.search(r"generation_tokens_total\S* 3015", (await client.get("/metrics")).text):
                    assert asyncio.get_running_loop().time() < deadline, "the engine goes on, whoever reads"
            sender.transport.resume_reading()  # type: ignore[union-attr]
            _, chunks = await chunked(late)
    assert texts(b"".join(chunks)) == {0: "Hello world" * 1500}
    assert sum(map(len, chunks)) < 400_000
