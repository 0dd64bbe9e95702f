"""What is spoken on a front process's private socket: a unix socket in a folder of mode 0700, never a port.

    GET  /info      FrontInfo, as JSON
    GET  /health    200 while requests can be served, else 503; Health, as JSON
    GET  /stats     EngineStats as last published, as JSON; the engine is not asked
    POST /channel   all of one client's traffic: the body of the request is a stream of Commands, that of the response one of
                    Events, each a MessagePack message behind its length (4 bytes, little-endian)

One channel a client rather than one request a call: an abort cannot overtake the request that it is meant for, ten thousand streams
take one connection, and its end tells either side at once that the other one is gone.
"""

from __future__ import annotations

import msgspec

from mqlab.types import ModelInfo, Shape

LAUNCHER = "launcher"
"""Role of the process that launches several fronts, and answers here in their place."""

SOCKET = "front.sock"
"""Name of the socket within its folder, where those of a layout lie too, which are named as its edges are."""

BASE = "http://front"
"""Where the routes are; the host is a name only."""

_HEAD = 4


class FrontInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a front process says of itself.

    Attributes:
        model: what its engine said of itself.
        shape: the layout between the front and its engine.
        pids: its processes by role: ``front`` and ``engine``, which may be the same, and what else its layout has. A server of several
            fronts has ``launcher``, ``front-0``, ``front-1``, … instead of the one.
        page: path of the engine's page of statistics and step stamps.
        url: where its OpenAI server listens; None where it has none.
        recording: folder that its processes record into.
    """

    model: ModelInfo
    shape: Shape
    pids: dict[str, int]
    page: str
    url: str | None = None
    recording: str | None = None

    @property
    def pid(self) -> int:
        """The process that answers here."""
        return self.pids[LAUNCHER if LAUNCHER in self.pids else "front"]


def frame(message: bytes) -> bytes:
    """A message with its length before it."""
    return len(message).to_bytes(_HEAD, "little") + message


class Unframer:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now."""
        rest = self._rest
        rest += data
        messages, start = [], 0
        while len(rest) - start >= _HEAD:
            end = start + _HEAD + int.from_bytes(rest[start : start + _HEAD], "little")
            if end > len(rest):
                break
            messages.append(bytes(rest[start + _HEAD : end]))
            start = end
        del rest[:start]
        return messages
