"""Server-sent events over plain ASGI, and the chunks of OpenAI's streams, most of whose bytes are the same each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import Send

from mqlab.server.errors import ApiError
from mqlab.types import Usage

_JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
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

    def around(self, frame: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        """What stands around a text in an event with one choice, given what stands around it in the choice."""
        begin, end = frame
        return self._start + begin, end + self._end

    def usage(self, usage: Usage) -> bytes:
        """The last event before the end: no choices, all tokens."""
        return self._start + b'],"usage":' + msgspec.json.encode(usage_object(usage)) + b"}\n\n"


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
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
