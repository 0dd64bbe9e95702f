"""Outputs that grow: every message carries all tokens of a request so far, as engines sent them before delta outputs.

An option beside any codec, so that what it costs can be measured. Source: vLLM's RequestOutput through RPC and MQ engines (v0.5, v0.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mqlab.types import Command, Delta, Event, ModelInfo, Step

if TYPE_CHECKING:
    from mqlab.wire.codecs import Codec, Frame

_Key = tuple[int, str]


class CumulativeCodec:
    """Wraps a codec: encodes whole outputs, and gives the receiver back what is new. One instance per thread and direction."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._sent: dict[_Key, list[int]] = {}
        self._received: dict[_Key, int] = {}
        self.command = codec.command
        self.info = codec.info

    def encode(self, message: Command | Event | ModelInfo) -> bytes:
        """One message as one frame."""
        if type(message) is Step:
            message = Step([self._grow(delta, message.client) for delta in message.deltas], message.client)
        return self._codec.encode(message)

    def event(self, frame: Frame) -> Event:
        """Decode what a client receives, new tokens only."""
        event = self._codec.event(frame)
        if type(event) is Step:
            return Step([self._cut(delta, event.client) for delta in event.deltas], event.client)
        return event

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


def _with_tokens(delta: Delta, tokens: list[int]) -> Delta:
    return msgspec.structs.replace(delta, tokens=tokens)
