"""The clients of ``mqlab bench frontend``: each chunk is counted once however it arrives; what is not whole is lost, with a reason."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from mqlab.bench.frontend.driver import drive
from mqlab.bench.frontend.job import Job
from mqlab.bench.frontend.probe import MARK, model_of, probe, request_of
from mqlab.errors import BenchError

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":" \\"content\\":\\"x"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
WHOLE = HEAD + ROLE + CHUNK * 5 + END
REFUSAL = b'HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n{"error":"full"}'


class Scripted:
    """Answers the n-th connection with the n-th script: what to send, piece by piece; None holds it open without a word."""

    def __init__(self, scripts: Sequence[Sequence[bytes] | None]) -> None:
        self._scripts = scripts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def serve(self) -> None:
        """All scripts, each on a connection of its own; then wait to be told that it is over."""
        held = []
        for script in self._scripts:
            connection, _ = self._listener.accept()
            connection.recv(1 << 16)
            if script is None:
                held.append(connection)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in script:
                connection.sendall(piece)
            connection.close()
        self._over.wait(20)
        for connection in held:
            connection.close()

    def stop(self) -> None:
        """Let ``serve`` return."""
        self._over.set()
        self._listener.close()


@contextmanager
def scripted(*scripts: Sequence[bytes] | None) -> Iterator[Scripted]:
    server = Scripted(scripts)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def job_for(server: Scripted, streams: int, **more: Any) -> Job:
    request = request_of(server.url, "model", 5)
    return Job("127.0.0.1", server.port, request, streams, MARK, 1, **more)


def test_chunks_are_counted_once_however_they_arrive() -> None:
    bytewise = [WHOLE[place : place + 1] for place in range(len(WHOLE))]
    halves = [WHOLE[:200], WHOLE[200:]]
    opened: list[str] = []
    with scripted([WHOLE], bytewise, halves) as server:
        seen = drive(job_for(server, 3), {}, lambda: opened.append("open")).seen
    assert (seen.chunks, seen.lost, opened) == ([5, 5, 5], [], ["open"])
    assert seen.size == 3 * len(WHOLE) and seen.reads >= 3 and seen.cpu_s > 0
    assert all(sent <= first <= end for sent, first, end in zip(seen.sent_ns, seen.first_ns, seen.end_ns, strict=True))


def test_streams_that_are_not_whole_are_lost_with_a_reason() -> None:
    cut = HEAD + ROLE + CHUNK * 2
    opened: list[str] = []
    with scripted([WHOLE], [cut], [REFUSAL]) as server:
        driven = drive(job_for(server, 3), {"front": os.getpid()}, lambda: opened.append("open"))
    assert sorted(driven.seen.chunks) == [0, 2, 5] and not opened
    assert sorted(driven.seen.lost) == [
        'answered: HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n{"error":"full"}',
        "the answer ended before [DONE]",
    ]
    assert set(driven.cpu.share) == {"front", "client 1"}


def test_a_stream_that_never_ends_is_lost() -> None:
    with scripted(None, None) as server:
        seen = drive(job_for(server, 2, timeout_s=0.2), {}).seen
    assert seen.lost == ["not over within 0.2 s"] * 2 and seen.first_ns == [0, 0]


def test_nobody_there_is_a_reason_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    seen = drive(Job("127.0.0.1", port, b"GET / HTTP/1.1\r\n\r\n", 2, MARK, 1), {}).seen
    assert len(seen.lost) == 2 and all("refused" in error or "Broken pipe" in error for error in seen.lost)


def test_many_streams_take_several_clients_and_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlab.bench.frontend.driver.connections_of_a_process", lambda: 2)
    monkeypatch.setattr("mqlab.bench.frontend.driver._PORTS", 2)
    with scripted(*([[WHOLE]] * 5)) as server:
        driven = drive(job_for(server, 5), {})
    assert driven.seen.chunks == [5] * 5 and not driven.seen.lost
    assert {name for name in driven.cpu.share if name.startswith("client")} == {"client 1", "client 2", "client 3"}


def test_a_client_that_ends_early_is_told() -> None:
    with pytest.raises(BenchError, match=r"client process \d+ ended with exit code 1"):
        drive(Job("no number", 80, b"", 1, MARK, 1), {})


def answer_of(body: bytes) -> list[bytes]:
    return [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)]


def stream_of(tokens: int, counted: int) -> list[bytes]:
    usage = json.dumps({"choices": [], "usage": {"completion_tokens": counted}}).encode()
    return answer_of(ROLE + CHUNK * tokens + END.replace(b"data: [DONE]", b"data: " + usage + b"\n\ndata: [DONE]"))


def test_a_probe_takes_one_answer_apart() -> None:
    with scripted(stream_of(16, 16)) as server:
        answer = probe(server.url, "model")
    assert (answer.head, answer.chunk, answer.tail) == (ROLE, CHUNK, END)
    assert (answer.extra, answer.chunks, answer.tokens) == (1, 16, 16)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (answer_of(b'{"choices":[]}'), "gave no stream of chunks with text"),
        (stream_of(4, 4), "gave 4 tokens where 16 were asked for: it must take ignore_eos"),
        ([REFUSAL], "answered 503: .*full"),
        ([b""], "does not answer"),
    ],
)
def test_what_gives_no_stream_is_refused(answer: list[bytes], words: str) -> None:
    with scripted(answer) as server, pytest.raises(BenchError, match=words):
        probe(server.url, "model")


def test_a_server_without_models_is_none() -> None:
    with scripted(answer_of(b'{"data":[]}')) as server, pytest.raises(BenchError, match="names no model"):
        model_of(server.url)


def test_steps_come_between_two_words_and_end_with_the_parent() -> None:
    command = [sys.executable, "-m", "mqlab.bench.frontend.steps", "0.001"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as steps:
        assert steps.stdin is not None and steps.stdout is not None
        steps.stdin.write(b".")
        assert [steps.stdout.read(1) for _ in range(3)] == [b"\0"] * 3
        steps.stdin.write(b".")
        steps.stdin.close()
        assert set(steps.stdout.read()) <= {0}
        assert steps.wait(10) == 0
