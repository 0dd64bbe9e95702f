"""Server-sent events over plain ASGI, and the chunks of OpenAI's streams, most of whose bytes are the same each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import Send

from mqlab.server.errors import ApiError
from mqlab.types import Usage

_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
DONE = b"data: [DONE]\n\n"


class Head(msgspec.Struct, frozen=True):
    """What all chunks of an answer have in common."""

    id: str
    created: int
    model: str


class Chunks:
    """Builds the events of one stream.

    Args:
        head: id, creation time and model; constant within a stream.
        object_name: OpenAI's name of a chunk.
        include_usage: whether each chunk has the key, null in all but the last one.
    """

    def __init__(self, head: Head, object_name: str, include_usage: bool) -> None:
        common = {"id": head.id, "object": object_name, "created": head.created, "model": head.model}
        self._start = b"data: " + msgspec.json.encode(common)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def choice(self, choice: bytes) -> bytes:
        """An event with one choice, given as JSON."""
        return self._start + choice + self._end

    def usage(self, usage: Usage) -> bytes:
        """The last event before the end: no choices, all tokens."""
        return self._start + b'],"usage":' + msgspec.json.encode(usage_object(usage)) + b"}\n\n"


class EventStream:
    """The response of a stream; it starts with its first event, so what fails before that can still be an ordinary error."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def write(self, events: bytes) -> None:
        """Send events; waits while the reader is slow."""
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self, last: bytes) -> None:
        """Send the last event."""
        await self._send({"type": "http.response.body", "body": last})

    async def fail(self, error: ApiError) -> None:
        """An error event, or an ordinary error where nothing was sent yet. No end marker follows: the answer is not whole."""
        if self.started:
            await self.end(b"data: " + error.body() + b"\n\n")
        else:
            await refuse(self._send, error)


async def refuse(send: Send, error: ApiError) -> None:
    """A whole response that is a refusal."""
    await respond(send, error.status, error.body(), error.headers)


async def respond(send: Send, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    """A whole JSON response."""
    more = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    sent_headers = [*_JSON, (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": sent_headers})
    await send({"type": "http.response.body", "body": body})


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
