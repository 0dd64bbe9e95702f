"""The client process: ``python -m mqlab.bench.frontend.client``, a job on stdin, what it saw on stdout (see job).

It must cost far less than the server that it measures: one thread, epoll, one buffer for all that comes, and chunks are counted where they
lie, never taken apart.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time

import msgspec

from mqlab.bench.frontend.job import GO, OPEN, READY, Job, Seen
from mqlab.wire.files import allow_many_files

_BUFFER = 1 << 18
_DONE = b"[DONE]"
_OK = b"HTTP/1.1 200"
_EVENT_END = b"}\n\n\r\n"
"""Of an event in a chunked body: what ends so holds whole chunks, and no end of the answer."""
_AT_ONCE = 32
"""Connections that are opened before those that are open already are looked at."""
_CONNECTING = 512
"""Connections under way at most: a listener's queue is bounded, and what does not fit tries again a second later."""
_NEWLINE = 10
_SHOWN = 300
_ADDRESSES = 250
_BIND_LATE = getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24)


class _Stream:
    """One request and its answer."""

    __slots__ = ("chunks", "done", "end_ns", "error", "first_ns", "flows", "index", "reads", "recv_into", "sent_ns", "size", "sock", "tail")

    def __init__(self, index: int, sock: socket.socket) -> None:
        self.index = index
        self.sock = sock
        self.recv_into = sock.recv_into
        self.sent_ns = 0
        self.first_ns = 0
        self.end_ns = 0
        self.chunks = 0
        self.size = 0
        self.reads = 0
        self.flows = False
        """Its first chunk is here, and what came last was whole."""
        self.done = False
        self.error = ""
        self.tail = b""
        """What came last, where a mark may have been cut in two."""


class _Client:
    """All streams of a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._epoll = select.epoll()
        self._margin = max(len(job.mark), len(_DONE)) - 1
        self._buffer = bytearray(self._margin + _BUFFER)
        self._room = memoryview(self._buffer)[self._margin :]
        self._by_fd: dict[int, _Stream] = {}
        self._all: list[_Stream] = []
        self._connecting = 0
        self._first = 0

    def run(self) -> Seen:
        begun, deadline = time.process_time(), time.monotonic() + self._job.timeout_s
        while self._by_fd or len(self._all) < self._job.streams:
            opening = self._open_some()
            left = deadline - time.monotonic()
            if left <= 0:
                self._give_up()
                break
            self._take(self._epoll.poll(0 if opening else left))
        return self._seen(time.process_time() - begun)

    def _take(self, events: list[tuple[int, int]]) -> None:
        """What came. This is where the time goes: nothing is looked up twice, and a stream that flows is only counted."""
        by_fd, buffer, room, margin, mark = self._by_fd, self._buffer, self._room, self._margin, self._job.mark
        for fd, _ in events:
            stream = by_fd[fd]
            if not stream.sent_ns:
                self._send(stream)
                continue
            try:
                count = stream.recv_into(room)
            except BlockingIOError:
                continue
            except OSError as error:
                self._end(stream, f"{type(error).__name__}: {error}")
                continue
            stream.size += count
            stream.reads += 1
            if stream.flows and buffer.endswith(_EVENT_END, margin, margin + count):
                stream.chunks += buffer.count(mark, margin, margin + count)
            elif count:
                self._look(stream, margin, margin + count)
            else:
                self._end(stream, "" if stream.done else "the answer ended before [DONE]")

    def _open_some(self) -> bool:
        """Whether there is more to open at once."""
        missing = self._job.streams - len(self._all)
        for _ in range(min(_AT_ONCE, missing, _CONNECTING - self._connecting)):
            self._open()
        return len(self._all) < self._job.streams and self._connecting < _CONNECTING

    def _open(self) -> None:
        job = self._job
        stream = _Stream(len(self._all), socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
        self._all.append(stream)
        if job.sources:
            # The port is chosen when the connection is made: it must be free towards that server only.
            stream.sock.setsockopt(socket.IPPROTO_IP, _BIND_LATE, 1)
            stream.sock.bind((f"127.0.0.{1 + stream.index % min(job.sources, _ADDRESSES)}", 0))
        stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.sock.connect_ex((job.host, job.port))
        self._by_fd[stream.sock.fileno()] = stream
        self._epoll.register(stream.sock.fileno(), select.EPOLLOUT)
        self._connecting += 1

    def _send(self, stream: _Stream) -> None:
        """Connected, or not."""
        self._connecting -= 1
        stream.sent_ns = time.monotonic_ns()
        try:
            stream.sock.send(self._job.request)
        except OSError as error:
            self._end(stream, f"{type(error).__name__}: {error}")
            return
        self._epoll.modify(stream.sock.fileno(), select.EPOLLIN)

    def _look(self, stream: _Stream, start: int, end: int) -> None:
        """What is not just one more chunk: the head of an answer, its end, or what was cut in two."""
        buffer, margin = self._buffer, self._margin
        if stream.size == end - start and not buffer.startswith(_OK, start):
            stream.error = "answered: " + buffer[start : min(end, start + _SHOWN)].decode(errors="replace")
        start -= len(stream.tail)
        buffer[start:margin] = stream.tail
        stream.chunks += buffer.count(self._job.mark, start, end)
        stream.done = stream.done or buffer.find(_DONE, start, end) >= 0
        # Events and the parts of a chunked body end with a newline, and no mark holds one.
        stream.tail = b"" if buffer[end - 1] == _NEWLINE else bytes(buffer[max(start, end - margin) : end])
        if not stream.first_ns and stream.chunks > self._job.extra:
            self._begin(stream)
        stream.flows = bool(stream.first_ns) and not stream.tail

    def _begin(self, stream: _Stream) -> None:
        stream.first_ns = time.monotonic_ns()
        self._first += 1
        if self._first == self._job.streams:
            os.write(1, OPEN)

    def _end(self, stream: _Stream, error: str) -> None:
        stream.end_ns = time.monotonic_ns()
        stream.error = stream.error or error
        del self._by_fd[stream.sock.fileno()]
        stream.sock.close()

    def _give_up(self) -> None:
        for stream in list(self._by_fd.values()):
            stream.sent_ns = stream.sent_ns or time.monotonic_ns()
            self._end(stream, f"not over within {self._job.timeout_s:g} s")

    def _seen(self, cpu_s: float) -> Seen:
        streams = self._all
        return Seen(
            sent_ns=[one.sent_ns for one in streams],
            first_ns=[one.first_ns for one in streams],
            end_ns=[one.end_ns for one in streams],
            chunks=[max(0, one.chunks - self._job.extra) for one in streams],
            errors=[one.error for one in streams],
            size=sum(one.size for one in streams),
            reads=sum(one.reads for one in streams),
            cpu_s=cpu_s,
        )


def main() -> None:
    """Run one job. Ends with its parent, whose end of the pipe is its stdin."""
    allow_many_files()
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    client = _Client(job)
    os.write(1, READY)
    if sys.stdin.buffer.readline() == GO:
        sys.stdout.buffer.write(msgspec.json.encode(client.run()) + b"\n")


if __name__ == "__main__":
    main()
