"""Runs a load on processes of its own and collects what they saw."""

from __future__ import annotations

import math
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from typing import TypeVar, cast

import msgspec

from mqlab.bench.load.messages import (
    Call,
    Done,
    Failed,
    FromWorker,
    Job,
    Progress,
    Ready,
    Record,
    Start,
    ToWorker,
    WorkerLoad,
    read_frame,
    write_frame,
)
from mqlab.errors import BenchError
from mqlab.wire.spawn import end, spawn

T = TypeVar("T")

_LEAD_S = 0.05
"""From the word to start to the start: it must have reached all processes."""
_RATE_PER_WORKER = 250.0
_STREAMS_PER_WORKER = 1000


@dataclass(frozen=True)
class Load:
    """What to send, whatever the server: encoded bodies, due times in s, and the bounds.

    Attributes:
        warm_up: bodies that are sent first and are in no record.
        max_concurrency: requests under way at most, all processes together.
    """

    url: str
    headers: dict[str, str]
    bodies: Sequence[bytes]
    due_s: Sequence[float]
    warm_up: Sequence[bytes] = ()
    max_concurrency: int | None = None
    timeout_s: float = 21600.0
    keep_text: bool = False


@dataclass(frozen=True)
class LoadOutcome:
    """What came of it.

    Attributes:
        start_ns: when the run began; due times count from here.
        records: one per body, in their order.
        loads: one per process.
        warm_up_errors: of warm-up requests that failed.
    """

    start_ns: int
    records: list[Record]
    loads: list[WorkerLoad]
    warm_up_errors: list[str]


def choose_workers(rate: float, streams: int, cores: int) -> int:
    """Load processes for a load: one per 250 requests/s or 1000 open streams, and at most a quarter of the cores.

    Args:
        rate: requests/s, may be inf. streams: requests under way at most.
    """
    wanted = max(math.ceil(rate / _RATE_PER_WORKER) if math.isfinite(rate) else 1, math.ceil(streams / _STREAMS_PER_WORKER))
    return max(1, min(wanted, cores // 4))


def run_load(
    load: Load, workers: int, *, on_start: Callable[[], object] = lambda: None, on_progress: Callable[[int], object] = lambda ended: None
) -> LoadOutcome:
    """Send a load from ``workers`` processes; returns when every request is over. Blocks.

    Args:
        on_start: called when the warm-up is over, just before the start.
        on_progress: called a few times a second with the number of requests that are over.

    Raises:
        BenchError: a load process failed; requests that fail are records.
    """
    jobs = _jobs(load, workers)
    with ExitStack() as stack:
        processes: list[_LoadProcess] = []
        for job in jobs:
            processes.append(process := _LoadProcess(job))
            stack.callback(process.end)  # before it starts: an interrupt may arrive right after
            process.start()
        fleet = _Fleet(processes, on_progress)
        ready = fleet.gather(Ready)
        on_start()
        start = Start(time.monotonic_ns() + int(_LEAD_S * 1e9))
        fleet.tell(start)
        done = fleet.gather(Done)
    records = sorted((record for one in done for record in one.records), key=lambda record: record.index)
    return LoadOutcome(start.at_ns, records, [one.load for one in done], [error for one in ready for error in one.errors])


def _jobs(load: Load, workers: int) -> list[Job]:
    """Every process gets each ``workers``-th request, and its part of the bound; none gets a bound of 0."""
    workers = min(workers, len(load.bodies), load.max_concurrency or workers)
    calls = [Call(index, int(due * 1e9), body) for index, (due, body) in enumerate(zip(load.due_s, load.bodies, strict=True))]
    warm_up = [Call(index, 0, body) for index, body in enumerate(load.warm_up)]
    return [
        Job(
            load.url,
            load.headers,
            warm_up[part::workers],
            sorted(calls[part::workers], key=lambda call: call.at_ns),
            _share(load.max_concurrency, part, workers),
            load.timeout_s,
            load.keep_text,
        )
        for part in range(workers)
    ]


def _share(total: int | None, part: int, parts: int) -> int | None:
    return None if total is None else total // parts + (part < total % parts)


class _LoadProcess:
    """One process and its two pipes."""

    def __init__(self, job: Job) -> None:
        self._job = job
        # A pipe of its own for the frames: whatever the interpreter or a library prints, it is not one of them.
        reading, writing = os.pipe()
        self.frames, self._theirs = FileIO(reading), FileIO(writing, "w")
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def popen(self) -> subprocess.Popen[bytes]:
        assert self._popen is not None, "not before its start"
        return self._popen

    def start(self) -> None:
        """Start it, and give it its job."""
        writing = self._theirs.fileno()
        command = [sys.executable, "-P", "-m", "mqlab.bench.load.worker", str(writing)]
        # Not in the terminal's group: an interrupt is the benchmark's business, which then ends its processes.
        self._popen = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, process_group=0, pass_fds=(writing,))
        self._theirs.close()
        self.tell(self._job)

    def end(self) -> None:
        """Kill it if it runs."""
        if self._popen is not None:
            end(self._popen)
        self._theirs.close()
        self.frames.close()

    @property
    def _stdin(self) -> FileIO:
        return cast(FileIO, self.popen.stdin)

    def tell(self, message: ToWorker) -> None:
        try:
            write_frame(self._stdin, message)
        except BrokenPipeError:
            raise BenchError(self._ended()) from None

    def hear(self, decoder: msgspec.msgpack.Decoder[FromWorker]) -> FromWorker:
        frame = read_frame(self.frames)
        if frame is None:
            raise BenchError(self._ended())
        message = decoder.decode(frame)
        if isinstance(message, Failed):
            raise BenchError(f"load process {self.popen.pid} failed:\n{message.message}")
        return message

    def _ended(self) -> str:
        return f"load process {self.popen.pid} ended with exit code {self.popen.wait()} before its job was done; stderr has its messages"


class _Fleet:
    """All load processes of a run."""

    def __init__(self, processes: Sequence[_LoadProcess], on_progress: Callable[[int], object]) -> None:
        self._processes = processes
        self._on_progress = on_progress
        self._ended = dict.fromkeys(processes, 0)
        self._decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)

    def tell(self, message: ToWorker) -> None:
        for process in self._processes:
            process.tell(message)

    def gather(self, kind: type[T]) -> list[T]:
        """One message of a kind from each process, in their order."""
        got: dict[_LoadProcess, T] = {}
        with selectors.DefaultSelector() as selector:
            for process in self._processes:
                selector.register(process.frames, selectors.EVENT_READ, process)
            while len(got) < len(self._processes):
                for key, _ in selector.select():
                    message = key.data.hear(self._decoder)
                    if isinstance(message, kind):
                        got[key.data] = message
                        selector.unregister(key.fileobj)
                    else:
                        self._note(key.data, message)
        return [got[process] for process in self._processes]

    def _note(self, process: _LoadProcess, message: FromWorker) -> None:
        if isinstance(message, Progress):
            self._ended[process] = message.ended
            self._on_progress(sum(self._ended.values()))
