"""Outputs that grow: every message carries all tokens of a request so far, as engines sent them before delta outputs.

An option beside any codec, so that what it costs can be measured. Source: vLLM's RequestOutput through RPC and MQ engines (v0.5, v0.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mqlab.types import Delta, Event, Step

if TYPE_CHECKING:
    from mqlab.wire.codecs import Codec, Frame

_Key = tuple[int, str]


class Growth:
    """From new tokens to all so far, where steps are sent, and back, where they are received; one instance may do both."""

    def __init__(self) -> None:
        self._sent: dict[_Key, list[int]] = {}
        self._received: dict[_Key, int] = {}

    def grow(self, step: Step) -> Step:
        """A step that is sent, each delta with every token so far."""
        return Step([self._grow(delta, step.client) for delta in step.deltas], step.client)

    def cut(self, step: Step) -> Step:
        """A step that was received, each delta with new tokens only."""
        return Step([self._cut(delta, step.client) for delta in step.deltas], step.client)

    def _grow(self, delta: Delta, client: int) -> Delta:
        key = (client, delta.id)
        tokens = self._sent.setdefault(key, [])
        tokens += delta.tokens
        if delta.finish is not None:
            del self._sent[key]
        return _with_tokens(delta, tokens)

    def _cut(self, delta: Delta, client: int) -> Delta:
        key = (client, delta.id)
        seen = self._received.get(key, 0)
        self._received[key] = len(delta.tokens)
        if delta.finish is not None:
            del self._received[key]
        return _with_tokens(delta, delta.tokens[seen:])


class CumulativeCodec:
    """Wraps a codec: encodes whole outputs, and gives the receiver back what is new. One instance per thread and direction."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._growth = Growth()
        self.command = codec.command
        self.info = codec.info
        self.decoder = codec.decoder

    def encode(self, message: Any) -> bytes:
        """One message as one frame."""
        return self._codec.encode(self._growth.grow(message) if type(message) is Step else message)

    def event(self, frame: Frame) -> Event:
        """Decode what a client receives, new tokens only."""
        event = self._codec.event(frame)
        return self._growth.cut(event) if type(event) is Step else event


def _with_tokens(delta: Delta, tokens: list[int]) -> Delta:
    return msgspec.structs.replace(delta, tokens=tokens)
