"""Runs a job on client processes, while the processors are watched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from io import BufferedReader
from typing import IO, cast

import msgspec
from msgspec.structs import replace

from mqlab.bench.cpu import CpuReport, CpuWatch
from mqlab.bench.frontend.job import GO, OPEN, READY, Job, Seen, merged
from mqlab.errors import BenchError
from mqlab.wire.files import allow_many_files
from mqlab.wire.spawn import end, spawn

_OTHER_FILES = 64
"""Files that a process has open beside its connections."""
_PORTS = 8000
"""Connections from one address, well below what the system has ports for."""
_CLIENT = "client"


@dataclass(frozen=True)
class Driven:
    """One run of a job.

    Attributes:
        cpu: who used the processors, by the names that were given; the clients are ``client 1`` and so on.
    """

    seen: Seen
    cpu: CpuReport


def drive(job: Job, processes: Mapping[str, int], on_open: Callable[[], object] = lambda: None) -> Driven:
    """Run a job; blocks until every stream is over or lost.

    Args:
        processes: pids of the server's processes by name, for their CPU time.
        on_open: called once, when every stream has had its first token.

    Raises:
        BenchError: a client process failed.
    """
    with ExitStack() as stack:
        clients: list[_Client] = []
        for part in _parts(job):
            clients.append(client := _Client(part))
            stack.callback(client.end)  # before it starts: an interrupt may arrive right after
            client.start()
        for client in clients:
            client.expect(READY)
        named = {f"{_CLIENT} {number}": client.pid for number, client in enumerate(clients, 1)}
        with CpuWatch({**processes, **named}) as watch:
            for client in clients:
                client.go()
            lines = [client.line() for client in clients]
            if all(line == OPEN for line in lines):
                on_open()
            ends = [client.line() if line == OPEN else line for client, line in zip(clients, lines, strict=True)]
        return Driven(merged([msgspec.json.decode(end, type=Seen) for end in ends]), watch.report)


def connections_of_a_process() -> int:
    """How many connections one process of this user can hold."""
    return allow_many_files() - _OTHER_FILES


def _parts(job: Job) -> list[Job]:
    """As few clients as can hold all streams."""
    count = -(-job.streams // connections_of_a_process())
    sources = -(-job.streams // _PORTS) if job.streams > _PORTS and job.host.startswith("127.") else 0
    sizes = [job.streams // count + (part < job.streams % count) for part in range(count)]
    return [replace(job, streams=size, sources=sources) for size in sizes]


class _Client:
    """A client process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def popen(self) -> subprocess.Popen[bytes]:
        """Its process."""
        assert self._popen is not None, "not before its start"
        return self._popen

    @property
    def pid(self) -> int:
        """Of its process."""
        return self.popen.pid

    def start(self) -> None:
        """Start it, and give it its job."""
        command = [sys.executable, "-P", "-m", "mqlab.bench.frontend.client"]
        # Not in the terminal's group: an interrupt is the benchmark's business, which then ends its processes.
        self._popen = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        self._tell(msgspec.json.encode(self._job) + b"\n")

    def end(self) -> None:
        """Kill it if it runs."""
        if self._popen is not None:
            end(self._popen)

    def go(self) -> None:
        self._tell(GO)

    def expect(self, wanted: bytes) -> None:
        if (line := self.line()) != wanted:
            raise BenchError(f"client process {self.pid} said {line!r} instead of {wanted!r}")

    def line(self) -> bytes:
        line = cast(BufferedReader, self.popen.stdout).readline()
        if not line:
            raise BenchError(f"client process {self.pid} ended with exit code {self.popen.wait()} before its job was done; see stderr")
        return line

    def _tell(self, message: bytes) -> None:
        pipe = cast(IO[bytes], self.popen.stdin)
        pipe.write(message)
        pipe.flush()
