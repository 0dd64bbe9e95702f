"""How a message becomes bytes: an axis of its own, not part of a topology."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from mqlab.errors import ConfigError
from mqlab.types import Command, Event, ModelInfo
from mqlab.wire.cumulative import CumulativeCodec

T = TypeVar("T")
Frame = bytes | memoryview


class Codec(Protocol):
    """Encodes any message; decodes by what the receiver expects. One instance per thread."""

    def encode(self, message: Any, /) -> bytes:
        """One message as one frame."""
        ...

    def command(self, frame: Frame, /) -> Command:
        """Decode what an engine receives."""
        ...

    def event(self, frame: Frame, /) -> Event:
        """Decode what a client receives."""
        ...

    def info(self, frame: Frame, /) -> ModelInfo:
        """Decode the handshake."""
        ...

    def decoder(self, kind: Any, /) -> Callable[[Frame], Any]:
        """Decodes a layout's own messages: a struct, or a union of them. They are encoded as any other."""
        ...


class MsgpackCodec:
    """msgspec's MessagePack: typed, validated, no code in the data. Source: vLLM V1 uses the same."""

    def __init__(self) -> None:
        self.encode = msgspec.msgpack.Encoder().encode
        self.command = msgspec.msgpack.Decoder(Command).decode
        self.event = msgspec.msgpack.Decoder(Event).decode
        self.info = msgspec.msgpack.Decoder(ModelInfo).decode

    def decoder(self, kind: Any) -> Callable[[Frame], Any]:
        """See Codec.decoder."""
        return msgspec.msgpack.Decoder(kind).decode


class PickleCodec:
    """What vLLM's RPC and MQ engines sent. Decoding runs code from the sender: only for sockets in a private folder, only by name."""

    def encode(self, message: Any) -> bytes:
        """One message as one frame."""
        return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)

    def command(self, frame: Frame) -> Command:
        """Decode what an engine receives."""
        return _unpickle(frame, Command)

    def event(self, frame: Frame) -> Event:
        """Decode what a client receives."""
        return _unpickle(frame, Event)

    def info(self, frame: Frame) -> ModelInfo:
        """Decode the handshake."""
        return _unpickle(frame, ModelInfo)

    def decoder(self, kind: Any) -> Callable[[Frame], Any]:
        """See Codec.decoder."""
        return lambda frame: _unpickle(frame, kind)


def _unpickle(frame: Frame, kind: Any) -> Any:
    message = pickle.loads(frame)
    if not isinstance(message, kind):
        raise TypeError(f"expected {kind}, got {type(message).__name__}")
    return message


def as_plain(value: Any) -> Any:
    """A value as what every codec can carry and gives back alike: numbers, strings, lists, dicts.

    Raises:
        ValueError: it cannot be sent; the message says which part.
    """
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error


OUTPUTS = ("delta", "cumulative")
CODECS: dict[str, type[MsgpackCodec] | type[PickleCodec]] = {"msgpack": MsgpackCodec, "pickle": PickleCodec}


def make_codec(name: str, output: str = "delta") -> Codec:
    """A codec by name.

    Args:
        output: ``delta``, or ``cumulative`` for events that carry every token of a request so far.

    Raises:
        ConfigError: no such codec, or no such output.
    """
    if name not in CODECS:
        raise ConfigError(f"--codec={name!r} is unknown; choose one of {', '.join(CODECS)}")
    if output not in OUTPUTS:
        raise ConfigError(f"--output={output!r} is unknown; choose one of {', '.join(OUTPUTS)}")
    codec = CODECS[name]()
    return codec if output == "delta" else CumulativeCodec(codec)
