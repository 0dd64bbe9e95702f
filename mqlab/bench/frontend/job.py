"""What passes between the benchmark and its client processes: one line of JSON each way, stamps in ns of CLOCK_MONOTONIC."""

from __future__ import annotations

import msgspec

READY = b"ready\n"
"""The client can begin; whoever reads it answers ``GO``."""
GO = b"go\n"
OPEN = b"open\n"
"""Every stream has had its first token."""


class Job(msgspec.Struct, frozen=True):
    """What one client does.

    Attributes:
        request: a whole HTTP request, with ``Connection: close``.
        streams: how often it is sent, each time on a connection of its own.
        mark: stands in each chunk with a token, once.
        extra: how often it stands elsewhere in an answer.
        sources: addresses of this machine (127.0.0.1 …) that connections come from; 0 leaves it to the system.
        timeout_s: streams that are not over by then are lost.
    """

    host: str
    port: int
    request: bytes
    streams: int
    mark: bytes
    extra: int
    sources: int = 0
    timeout_s: float = 300.0


class Seen(msgspec.Struct, frozen=True):
    """What a client saw, element ``i`` of each list of stream ``i``.

    Attributes:
        sent_ns: when the request was written. first_ns: when the first chunk with a token had come, 0 for never. end_ns: the end.
        chunks: with tokens.
        errors: why the answer is not whole, empty where it is.
        size: bytes that came, all streams together. reads: system calls that brought them.
        cpu_s: that the client used.
    """

    sent_ns: list[int]
    first_ns: list[int]
    end_ns: list[int]
    chunks: list[int]
    errors: list[str]
    size: int
    reads: int
    cpu_s: float

    @property
    def lost(self) -> list[str]:
        """The errors of those that are not whole."""
        return [error for error in self.errors if error]

    @property
    def elapsed_s(self) -> float:
        """From the first request to the last end."""
        return (max(self.end_ns) - min(self.sent_ns)) / 1e9


def merged(seen: list[Seen]) -> Seen:
    """What several clients saw."""
    return Seen(
        sent_ns=[stamp for one in seen for stamp in one.sent_ns],
        first_ns=[stamp for one in seen for stamp in one.first_ns],
        end_ns=[stamp for one in seen for stamp in one.end_ns],
        chunks=[count for one in seen for count in one.chunks],
        errors=[error for one in seen for error in one.errors],
        size=sum(one.size for one in seen),
        reads=sum(one.reads for one in seen),
        cpu_s=sum(one.cpu_s for one in seen),
    )
