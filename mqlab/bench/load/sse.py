"""Reading the answers of an OpenAI-compatible server: server-sent events, and what is in them."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"[DONE]"


class SseReader:
    """Cuts a byte stream into the data of its events. One line of data is one event, as OpenAI's streams are."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are whole with ``data``."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class PromptDetails(msgspec.Struct, frozen=True):
    """See OpenAI's usage."""

    cached_tokens: int | None = None


class StreamUsage(msgspec.Struct, frozen=True):
    """See OpenAI's usage."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Piece(msgspec.Struct, frozen=True):
    """The new part of a message; reasoning under either of its two names."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class StreamChoice(msgspec.Struct, frozen=True):
    """One choice of a chunk, of either route. ``token_ids`` is vLLM's and present only where the body asked for it."""

    text: str | None = None
    delta: Piece | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None

    @property
    def new_text(self) -> str:
        """What it adds to the answer."""
        if self.delta is None:
            return self.text or ""
        return (self.delta.reasoning_content or self.delta.reasoning or "") + (self.delta.content or "")


class Chunk(msgspec.Struct, frozen=True):
    """One event of a stream, of either route; an error has ``error``, or ``object`` "error" and a message."""

    choices: list[StreamChoice] = []
    usage: StreamUsage | None = None
    error: Any = None
    object: str = ""
    message: str | None = None

    @property
    def failure(self) -> str:
        """The message of an error event; empty for any other."""
        if isinstance(self.error, dict):
            return str(self.error.get("message") or self.error)
        if self.error is not None:
            return str(self.error)
        return self.message or "unknown error" if self.object == "error" else ""


_decoder = msgspec.json.Decoder(Chunk)


def decode_chunk(payload: bytes) -> Chunk:
    """The chunk of an event's data.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    return _decoder.decode(payload)
