"""What passes between the benchmark and its load processes: length-prefixed msgpack over a pipe each way.

    benchmark                      load process
      Job          ──────────►       makes ready, sends the warm-up
      Start        ──────────►     ◄── Ready
                                     sends each request when it is due
                                   ◄── Progress …
                                   ◄── Done

All stamps are CLOCK_MONOTONIC in ns, one clock for all processes of a host.
"""

from __future__ import annotations

import struct
from typing import Protocol

import msgspec

_LENGTH = struct.Struct("<Q")


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request, ready to be sent.

    Attributes:
        index: its number in the run.
        at_ns: when it is due, after the start.
        body: its JSON.
    """

    index: int
    at_ns: int
    body: bytes


class Job(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What one load process has to do.

    Attributes:
        url: where each body is posted.
        headers: sent with each.
        warm_up: sent before the run, at once.
        calls: sent in the run, ascending in time.
        max_concurrency: requests under way at most.
        timeout_s: for each request.
        keep_text: whether records carry the text of the answers.
    """

    url: str
    headers: dict[str, str]
    warm_up: list[Call]
    calls: list[Call]
    max_concurrency: int | None
    timeout_s: float
    keep_text: bool


class Start(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The run begins: all due times count from ``at_ns``."""

    at_ns: int


class Record(msgspec.Struct, array_like=True, gc=False):
    """What became of one request; stamps are 0 where it did not get so far.

    Attributes:
        index: as in its call.
        due_ns: when it should have been sent.
        woken_ns: when its process was ready to send it; the lag of the load generator lies between.
        sent_ns: when it was sent; waiting for ``max_concurrency`` lies between.
        end_ns: when its answer was over, or had failed.
        event_ns: stamps of events that carry new tokens.
        event_tokens: tokens of each of these events; empty where the server does not say.
        prompt_tokens: the server's count, None without usage.
        output_tokens: likewise.
        cached_tokens: prompt tokens that the server found in its prefix cache, None where it does not say.
        text: of the answer, where it was to be kept.
        error: why it failed; empty for a whole answer.
    """

    index: int
    due_ns: int
    woken_ns: int = 0
    sent_ns: int = 0
    end_ns: int = 0
    event_ns: list[int] = []
    event_tokens: list[int] = []
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    text: str = ""
    error: str = ""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The process can start; ``errors`` are those of the warm-up."""

    errors: list[str]


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Requests that ended so far, well or not."""

    ended: int


class WorkerLoad(msgspec.Struct, frozen=True, array_like=True):
    """How busy a load process was during the run.

    Attributes:
        cpu_s: CPU time that it used.
        wall_s: from the start to the end of its last request.
        busiest: CPUs used in its busiest half second.
        lag_p99_s: 99th percentile of how late its loop ran timers: stamps are no better than this.
    """

    pid: int
    cpu_s: float
    wall_s: float
    busiest: float
    lag_p99_s: float

    @property
    def share(self) -> float:
        """CPUs used."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The end of the job."""

    records: list[Record]
    load: WorkerLoad


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The process itself failed, not a request of it."""

    message: str


ToWorker = Job | Start
FromWorker = Ready | Progress | Done | Failed


class Readable(Protocol):
    """What a frame can be read from."""

    def read(self, size: int, /) -> bytes | None: ...


class Writable(Protocol):
    """What a frame can be written to."""

    def write(self, data: memoryview, /) -> int | None: ...


def write_frame(stream: Writable, message: ToWorker | FromWorker) -> None:
    """Send one message; ``stream`` may be unbuffered."""
    body = msgspec.msgpack.encode(message)
    rest = memoryview(_LENGTH.pack(len(body)) + body)
    while rest:
        rest = rest[stream.write(rest) or 0 :]


def read_frame(stream: Readable) -> bytes | None:
    """The next message, still encoded; None at the end of the stream, also where it ends within a message."""
    head = _read(stream, _LENGTH.size)
    return None if head is None else _read(stream, _LENGTH.unpack(head)[0])


def _read(stream: Readable, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = stream.read(size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
