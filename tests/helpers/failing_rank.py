"""Processes of ranks that fail, in the place of ``mqlab.model.parallel.ranks.ENTRY``; the first two do so without torch."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mqlab.errors import ModelError
from mqlab.model.parallel.messages import Done, Hello, Line, Order
from mqlab.wire.report import Reporter

SAID = "this rank was told to fail"


def run_rank(reporter: Reporter, run_dir: Path, *, rank: int, size: int, fd: int) -> None:
    """Fails at once."""
    raise ValueError(SAID)


def deaf_rank(reporter: Reporter, run_dir: Path, *, rank: int, size: int, fd: int) -> None:
    """Does the first thing that it is told, and listens no more."""
    line = Line(socket.socket(fileno=fd), Order)
    line.send(Hello(rank, os.getpid(), "here"))
    line.receive()
    line.send(Done())
    threading.Event().wait()


def refusing_rank(reporter: Reporter, run_dir: Path, *, rank: int, size: int, fd: int) -> None:
    """Finds the model, and cannot open it, when rank 0 waits for it already."""
    from mqlab.model.parallel import worker

    def refuse(*_: object) -> None:
        raise ModelError(SAID)

    worker.build = refuse  # type: ignore[assignment]
    worker.run_rank(reporter, run_dir, rank=rank, size=size, fd=fd)


def capturing_rank(reporter: Reporter, run_dir: Path, *, rank: int, size: int, fd: int) -> None:
    """Runs what it captures, as a GPU does."""
    from mqlab.model.parallel import worker

    capture_as_a_gpu()
    worker.run_rank(reporter, run_dir, rank=rank, size=size, fd=fd)


def starved_rank(reporter: Reporter, run_dir: Path, *, rank: int, size: int, fd: int) -> None:
    """Likewise; once it has rested it has no memory left to do so."""
    starve_after_a_rest()
    capturing_rank(reporter, run_dir, rank=rank, size=size, fd=fd)


def capture_as_a_gpu(replace: Callable[[Any, str, Any], object] = setattr) -> None:
    """Have this process run what it captures: collectives are in it."""
    from mqlab.model.accel.accelerator import HostAccelerator

    def capture(self: Any, run: Callable[[], None]) -> Callable[[], None]:
        run()
        return run

    replace(HostAccelerator, "capture", capture)


def starve_after_a_rest(replace: Callable[[Any, str, Any], object] = setattr) -> None:
    """Have this process rest, and find no memory for graphs when it wakes up."""
    import torch

    from mqlab.model.accel import load
    from mqlab.model.accel.runner import DeviceRunner

    rest = DeviceRunner.rest

    def starve(*_: object) -> None:
        raise torch.OutOfMemoryError(SAID)

    def rest_for_ever(self: Any) -> None:
        rest(self)
        replace(load, "Graphs", starve)

    replace(DeviceRunner, "rest", rest_for_ever)
