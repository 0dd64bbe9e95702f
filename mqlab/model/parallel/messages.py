"""What rank 0 and the others say to each other beside the tensors: msgpack on a stream socket, each behind its length.

                 ──► Build, Connect, Run, Rest, Resume, Close
    rank 0                                                       another rank
                 ◄── Hello, Done, Refused, Failed, Closed

The end of the stream is the end of the other side. Nothing is said while nothing is asked, so there is nothing that could time out.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import Any

import msgspec

from mqlab.config import EngineConfig
from mqlab.errors import ConfigError, ModelError, RefusalKind, refusal_kind, refusal_of
from mqlab.plan import Chunk, Plan
from mqlab.types import SamplingParams

_LENGTH = struct.Struct("<I")


class Build(msgspec.Struct, frozen=True, tag=True):
    """Find the model of this config; ``Done`` when it is there."""

    config: EngineConfig


class Connect(msgspec.Struct, frozen=True, tag=True):
    """All ranks have found it: meet the others under ``key``, and open it."""

    key: str


class Run(msgspec.Struct, frozen=True, tag=True):
    """One step."""

    plan: Plan


class Rest(msgspec.Struct, frozen=True, tag=True):
    """Free the KV memory."""


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Allocate it again; ``Done`` or ``Refused``."""


class Close(msgspec.Struct, frozen=True, tag=True):
    """Free the model; another may be asked for after ``Closed``."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A rank is there.

    Attributes:
        token: what proves, between hosts, that it was sent by whom it says.
    """

    rank: int
    pid: int
    host: str
    token: str = ""


class Done(msgspec.Struct, frozen=True, tag=True):
    """What was asked is done."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """It cannot be done, and nothing has changed."""

    kind: RefusalKind
    cause: str

    @staticmethod
    def of(error: ConfigError | ModelError) -> Refused:
        """For this reason."""
        return Refused(refusal_kind(error), str(error))

    def error(self) -> ConfigError | ModelError:
        """As the rank raised it."""
        return refusal_of(self.kind, self.cause)


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The rank has left the others, and is about to end, unless it is told to ``Close``.

    Attributes:
        lost: because of another one that is gone.
        refused: nothing is broken, but what its user asked for is not possible.
    """

    cause: str
    traceback: str
    lost: bool = False
    refused: Refused | None = None


class Closed(msgspec.Struct, frozen=True, tag=True):
    """The model is freed; whatever was said before belongs to it."""


Order = Build | Connect | Run | Rest | Resume | Close
Answer = Hello | Done | Refused | Failed | Closed

_PLAIN = SamplingParams()
_SCORED = SamplingParams(prompt_logprobs=0)


def bare(plan: Plan) -> Plan:
    """A plan with what it takes to run it, without what only rank 0, which samples, needs: masks, histories, names, parameters."""
    return Plan(tuple([_bare(chunk) for chunk in plan.chunks]))


def _bare(chunk: Chunk) -> Chunk:
    # Rows of which logprobs are wanted need logits, and for these every rank.
    params = _PLAIN if chunk.scored is None else _SCORED
    # What is wanted of its states stays: without it another rank might run the step by a graph, whose padding is summed as well.
    return msgspec.structs.replace(chunk, id="", params=params, seed=0, banned=(), history=(), num_prompt=0, mask=None)


class Line:
    """One end of a stream socket.

    Args:
        end: connected; this object's from now on.
        reads: the type of what the other side says.
    """

    def __init__(self, end: socket.socket, reads: Any) -> None:
        end.setblocking(True)
        self._socket = end
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(reads)

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def send(self, message: Order | Answer) -> None:
        """Say it.

        Raises:
            OSError: nobody is there any more.
        """
        frame = self._encoder.encode(message)
        self._socket.sendall(_LENGTH.pack(len(frame)) + frame)

    def receive(self) -> Any:
        """The next message; None at the end."""
        try:
            head = self._exactly(_LENGTH.size)
            return None if head is None else self._decode(head)
        except ConnectionError:
            return None

    def reaches(self, last: type[Any], deadline: float) -> bool:
        """Read on up to a message of this type; whether it came before ``deadline`` (s, time.monotonic). If not, the line is of no use."""
        try:
            while True:
                self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
                message = self.receive()
                if message is None or isinstance(message, last):
                    return message is not None
        except (OSError, msgspec.MsgspecError):
            return False
        finally:
            if not self.closed:
                self._socket.setblocking(True)

    @property
    def closed(self) -> bool:
        """Whether this end is."""
        return self._socket.fileno() < 0

    def end(self) -> None:
        """Say that nothing more comes."""
        with contextlib.suppress(OSError):  # the other side was faster
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end; idempotent."""
        self._socket.close()

    def _decode(self, head: bytes) -> Any:
        frame = self._exactly(*_LENGTH.unpack(head))
        return None if frame is None else self._decoder.decode(frame)

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                return None
            data += part
        return bytes(data)
