"""Processes of ranks that fail, in the place of ``mqlab.model.parallel.ranks.ENTRY``; none of them imports torch."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

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
