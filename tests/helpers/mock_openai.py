"""A small OpenAI-compatible server that does as it is told: events, pauses, counts, errors; and notes what was asked of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Script:
    """What every request meets.

    Attributes:
        texts: of the events, in order.
        gap_s: before each event.
        delay_s: before the answer begins.
        hold: no answer begins before this many requests were under way at once.
        usage: of the last event; None sends none.
        status: of the response; other than 200 answers with an error.
        ending: "done" is a whole answer, "error" an error event, "cut" a stream that just ends, "silence" never answers.
        token_ids: per event; None leaves them out.
        metrics: what /metrics says, one page a call, the last one again and again; none at all answers 404.
    """

    texts: Sequence[str] = ("a", "b", "c")
    gap_s: float = 0.0
    delay_s: float = 0.0
    hold: int = 0
    usage: dict[str, Any] | None = None
    status: int = 200
    ending: str = "done"
    token_ids: Sequence[Sequence[int]] | None = None
    metrics: Sequence[str] = ()


@dataclass
class Mock:
    """A running mock.

    Attributes:
        bodies: what was asked, in the order of arrival.
        arrived: when, on its loop's clock, in s.
        peak: most requests under way at once.
        looks: how often /metrics was asked for.
    """

    script: Script
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    running: int = 0
    peak: int = 0
    full: asyncio.Event = field(default_factory=asyncio.Event)
    looks: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """POST of either route."""
        self.arrived.append(asyncio.get_running_loop().time())
        self.running += 1
        self.peak = max(self.peak, self.running)
        if self.running >= self.script.hold:
            self.full.set()
        try:
            self.bodies.append(await request.json())
            self.headers.append(dict(request.headers))
            return await self._play(request)
        finally:
            self.running -= 1

    async def metrics(self, request: web.Request) -> web.Response:
        """GET of the counters."""
        pages, self.looks = self.script.metrics, self.looks + 1
        return web.Response(text=pages[min(self.looks, len(pages)) - 1]) if pages else web.Response(status=404)

    async def _play(self, request: web.Request) -> web.StreamResponse:
        script = self.script
        if script.ending == "silence":
            await asyncio.Event().wait()
        await self.full.wait()
        await asyncio.sleep(script.delay_s)
        if script.status != 200:
            return web.json_response({"error": {"message": "no room"}}, status=script.status)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        async for event in self._events(request.path.startswith("/v1/chat")):
            await response.write(event)
        return response

    async def _events(self, chat: bool) -> AsyncIterator[bytes]:
        script = self.script
        for index, text in enumerate(script.texts):
            await asyncio.sleep(script.gap_s)
            ids = {} if script.token_ids is None else {"token_ids": list(script.token_ids[index])}
            yield event(choice(text, chat) | ids)
        if script.ending == "error":
            yield b'data: {"error": {"message": "the engine died"}}\n\n'
        if script.ending != "done":
            return
        yield event(choice("", chat) | {"finish_reason": "length"})
        if script.usage is not None:
            yield f"data: {json.dumps({'choices': [], 'usage': script.usage})}\n\n".encode()
        yield b"data: [DONE]\n\n"


def choice(text: str, chat: bool) -> dict[str, Any]:
    """One choice, as each route has it."""
    return {"index": 0, "finish_reason": None} | ({"delta": {"content": text}} if chat else {"text": text})


def event(one: dict[str, Any]) -> bytes:
    """A chunk as server-sent event."""
    return f"data: {json.dumps({'choices': [one]})}\n\n".encode()


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "mock-model"}]})


@contextmanager
def mock_openai(script: Script) -> Iterator[Mock]:
    """A mock on a free port, on a loop in a thread of its own: the test itself may block."""
    mock, ready = Mock(script), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(_serve(mock, ready, stop),), name="mock-openai")
    thread.start()
    ready.wait()
    try:
        yield mock
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _serve(mock: Mock, ready: threading.Event, stop: asyncio.Event) -> None:
    app = web.Application()
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/metrics", mock.metrics)
    app.router.add_post("/v1/completions", mock.answer)
    app.router.add_post("/v1/chat/completions", mock.answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    mock.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    ready.set()
    await stop.wait()
    await runner.cleanup()
