"""What a connection may do: send slowly, never end, send too much, idle. Each has its bound and its answer, and holds up nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from mqlab.config import ServerConfig
from mqlab.contract.waiting import until
from mqlab.server.http.connection import read_body
from mqlab.server.http.host import Host
from mqlab.server.http.listener import listening
from mqlab.server.http.patience import Patience
from mqlab.server.openai.stream import respond

HURRIED = Patience(head_s=0.1, body_s=0.1, slowest=1e9, longest_head=2000, longest_body=1 << 20)
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LIMIT_S = 10.0

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Client]]


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a body with its length."""
    await respond(send, 200, str(len(await read_body(receive))).encode())


@asynccontextmanager
async def hosting(patience: Patience | None = None, app: ASGIApp = echo, **settings: Any) -> AsyncIterator[tuple[Host, Connect]]:
    config = ServerConfig(port=0, **settings)
    with listening(config) as listener:
        host = Host(app, listener, config, patience=patience)
        port = listener.getsockname()[1]
        opened: list[asyncio.StreamWriter] = []

        async def connect() -> Client:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            opened.append(writer)
            return reader, writer

        await host.start()
        try:
            async with asyncio.timeout(LIMIT_S):
                yield host, connect
        finally:
            for writer in opened:
                writer.close()
            await host.stop(1.0)


def run(test: Awaitable[None]) -> None:
    """On the loop that servers have."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test)  # pyright: ignore[reportArgumentType]


async def answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.partition(b":")[2]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


@pytest.mark.parametrize(
    ("begun", "part"),
    [
        (b"G", "head"),
        (b"GET / HTTP/1.1\r\nhost: x\r\n", "head"),
        (b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n", "body"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", "body"),
        (GET + b"POST / HTTP/1.1\r\n", "head"),
    ],
    ids=str,
)
def test_a_request_that_never_ends_is_answered_with_408(begun: bytes, part: str) -> None:
    async def test() -> None:
        async with hosting(HURRIED) as (_, connect):
            reader, writer = await connect()
            writer.write(begun)
            if begun.startswith(GET):
                assert await answer(reader) == (200, 0)
            status, said = await answer(reader)
            assert status == 408 and said["error"]["code"] == "request_timeout" and part in said["error"]["message"]
            assert await reader.read() == b"", "and closed"

    run(test())


def test_a_head_that_drips_has_no_more_time_than_one_that_stands_still() -> None:
    async def test() -> None:
        async with hosting(HURRIED) as (_, connect):
            reader, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\n")
            answered = asyncio.create_task(answer(reader))
            while not answered.done():
                writer.write(b"x: y\r\n")
                await asyncio.wait([answered], timeout=0.01)
            assert (await answered)[0] == 408

    run(test())


def test_a_head_without_end_is_answered_with_431() -> None:
    async def test() -> None:
        async with hosting(Patience(longest_head=2000)) as (_, connect):
            reader, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\n")
            answered = asyncio.create_task(answer(reader))
            while not answered.done():
                writer.write(b"x: " + b"y" * 500 + b"\r\n")
                await asyncio.wait([answered], timeout=0.001)
            assert (await answered)[0] == 431

    run(test())


@pytest.mark.parametrize("nonsense", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_what_is_no_http_is_answered_in_the_envelope(nonsense: bytes) -> None:
    async def test() -> None:
        async with hosting() as (_, connect):
            reader, writer = await connect()
            writer.write(nonsense)
            status, said = await answer(reader)
            assert (status, said["error"]["code"]) == (400, "invalid_http")

    run(test())


def test_a_body_has_the_time_that_its_length_takes() -> None:
    patience = Patience(body_s=60, slowest=1000, longest_body=10_000)
    assert patience.for_body([(b"content-length", b"5000")]) == 65
    assert patience.for_body([(b"content-length", b"999999999")]) == patience.for_body([(b"transfer-encoding", b"chunked")]) == 70


def test_a_request_behind_another_waits_for_it_and_not_for_its_own_time() -> None:
    """Who sends the next request while an answer is under way is not read, and so cannot be late."""
    go = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await go.wait()
        await respond(send, 200, b"1")

    async def test() -> None:
        async with hosting(HURRIED, app=slow) as (host, connect):
            reader, writer = await connect()
            writer.write(GET + b"POST / HTTP/1.1\r\nconnection: close\r\ncontent-length: 4\r\n\r\nab")
            everything = asyncio.create_task(reader.read())
            try:
                await until(lambda: any(connection.pipeline for connection in host.connections))
                assert not (await asyncio.wait([everything], timeout=3 * HURRIED.body_s))[0]
            finally:
                go.set()
            writer.write(b"cd")
            assert (await everything).count(b"200 OK") == 2

    run(test())


def test_many_requests_at_once_are_no_long_head() -> None:
    """They come in pieces that end within a head, and are longer than one may be."""

    async def test() -> None:
        async with hosting(Patience(longest_head=2000)) as (_, connect):
            reader, writer = await connect()
            writer.write(GET * 5000)
            assert {await answer(reader) for _ in range(5000)} == {(200, 0)}

    run(test())


def test_who_sends_requests_without_an_end_is_read_no_faster_than_answered() -> None:
    """However small the requests, and although each answer and each body that is asked for lets more be read."""
    most = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal most
        most = max(most, *(len(connection.pipeline) for connection in hosted.connections))
        await read_body(receive)
        await respond(send, 200, b"1")

    async def test() -> None:
        nonlocal hosted
        async with hosting(app=app) as (hosted, connect):
            reader, writer = await connect()
            writer.write(GET * 60_000)
            assert {await answer(reader) for _ in range(20_000)} == {(200, 1)}

    hosted: Any = None
    run(test())
    assert 0 < most < 20_000, "what a few reads bring: 256 KiB are 9,000 of these"


def test_a_reader_that_leaves_is_told_to_the_request_that_runs_not_only_to_the_last() -> None:
    told = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        if (await receive())["type"] == "http.disconnect":
            told.set()

    async def test() -> None:
        async with hosting(app=app) as (host, connect):
            _, writer = await connect()
            writer.write(GET * 3)
            await until(lambda: any(connection.pipeline for connection in host.connections))
            writer.close()
            await asyncio.wait_for(told.wait(), LIMIT_S)

    run(test())


def test_thousands_of_idle_connections_cost_nobody_anything() -> None:
    async def test() -> None:
        async with hosting() as (host, connect):
            idle = [await connect() for _ in range(400)]
            await until(lambda: len(host.connections) == len(idle))
            reader, writer = await connect()
            writer.write(GET)
            assert await answer(reader) == (200, 0)

    run(test())


def test_a_body_that_was_refused_is_read_to_its_end_and_the_connection_lives_on() -> None:
    async def early(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 413 if scope["method"] == "POST" else 200, b"0")

    async def test() -> None:
        async with hosting(app=early) as (_, connect):
            reader, writer = await connect()
            body = b"x" * (8 << 20)
            writer.write(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body + GET)
            assert [(await answer(reader))[0] for _ in range(2)] == [413, 200]

    run(test())


def test_a_body_that_was_refused_and_never_ends_is_cut() -> None:
    async def early(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 413, b"0")

    async def test() -> None:
        async with hosting(HURRIED, app=early) as (_, connect):
            reader, writer = await connect()
            writer.write(b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nx")
            assert (await answer(reader))[0] == 413
            assert await reader.read() == b"", "closed, without another answer"

    run(test())


@pytest.mark.parametrize("apart", [False, True], ids=["at once", "apart"])
def test_who_asks_for_another_protocol_is_answered_in_this_one(apart: bool) -> None:
    """Java's own client does so with its first request, whose body the parser would lose."""

    async def test() -> None:
        async with hosting() as (host, connect):
            reader, writer = await connect()
            wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
            head = b"POST / HTTP/1.1\r\n" + wish + b"content-length: 3\r\n\r\n"
            writer.write(head if apart else head + b"abc")
            if apart:
                await until(lambda: any(connection.cycle for connection in host.connections))
                writer.write(b"abc")
            assert await answer(reader) == (200, 3)
            writer.write(GET)
            assert await answer(reader) == (200, 0)

    run(test())


def test_nonsense_is_refused_and_costs_the_request_before_it_nothing() -> None:
    async def test() -> None:
        async with hosting() as (_, connect):
            nonsense = b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n"
            reader, writer = await connect()
            writer.write(nonsense)
            assert (await answer(reader))[0] == 400
            reader, writer = await connect()
            writer.write(GET + nonsense)
            assert await answer(reader) == (200, 0)
            assert await reader.read() == b""

    run(test())


def test_work_that_does_not_mind_that_its_client_has_gone_does_not_hold_up_the_stop() -> None:
    async def deaf(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    async def test() -> None:
        with listening(ServerConfig(port=0)) as listener:
            host = Host(deaf, listener, ServerConfig())
            await host.start()
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(GET)
            await until(lambda: any(connection.cycle for connection in host.connections))
            async with asyncio.timeout(LIMIT_S):
                await host.stop(0.05)
            writer.close()

    run(test())
