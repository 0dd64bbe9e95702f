"""Very many streamed completions at once, over connections of their own, from one cheap client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_CONNECTING = 256
"""Connections that are being opened at once: more would overrun the listening socket's queue."""


@dataclass
class Answer:
    """What came back for one request.

    Attributes:
        status: of the HTTP answer.
        text: all pieces of it.
        finish: why it ended; empty where it was cut off.
    """

    status: int = 0
    text: str = ""
    finish: str = ""


class _Stream(asyncio.Protocol):
    """One request, written when it is connected."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.received = bytearray()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.ended.set_result(None)


@dataclass
class ManyStreams:
    """Sends bodies to ``/v1/completions`` of a server; every connection is closed by the server, after its stream.

    Attributes:
        url: the server.
        open: requests that were sent and have no whole answer yet; ``most`` is the largest number so far.
    """

    url: str
    open: int = 0
    most: int = 0
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONNECTING))

    async def ask(self, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
        """All of them at once; the answers in the same order."""
        return await asyncio.gather(*map(self._ask, bodies))

    async def _ask(self, body: dict[str, Any]) -> Answer:
        loop = asyncio.get_running_loop()
        place = urlsplit(self.url)
        async with self._room:
            _, stream = await loop.create_connection(lambda: _Stream(_request(place.netloc, body)), place.hostname or "", place.port or 80)
        self.open += 1
        self.most = max(self.most, self.open)
        await stream.ended
        self.open -= 1
        return _answer(bytes(stream.received))


def _request(netloc: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body | {"stream": True}).encode()
    fields = (f"Host: {netloc}", "Connection: close", "Content-Type: application/json", f"Content-Length: {len(content)}")
    return "\r\n".join(("POST /v1/completions HTTP/1.1", *fields, "", "")).encode() + content


def _answer(received: bytes) -> Answer:
    """Of a chunked answer of server-sent events."""
    answer = Answer(int(received.split(b" ", 2)[1]) if received.startswith(b"HTTP/") else 0)
    for line in received.splitlines():
        if line.startswith(b"data: {"):
            for choice in json.loads(line[len(b"data: ") :]).get("choices", ()):
                answer.text += choice["text"]
                answer.finish = choice["finish_reason"] or answer.finish
    return answer
