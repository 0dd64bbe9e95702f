"""Events of one process on disk: rows of whole numbers, appended from memory, readable while they are written.

A file is a JSON line that names the columns, then int64 rows. One writer thread each; a writer that dies leaves a file that is
whole up to its last flush.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

SUFFIX = ".events"
FLUSH_ROWS = 512
LIMIT_BYTES = 64 << 20
"""What one file may hold; after that events are only counted."""

_HEADER_BYTES = 4096


@dataclass(frozen=True)
class Kind:
    """A kind of event: its name and its columns, each a whole number; ``stamp_ns`` (CLOCK_MONOTONIC) comes first."""

    name: str
    columns: tuple[str, ...]


STEP = Kind("step", ("stamp_ns", "schedule_ns", "launch_ns", "device_ns", "sample_ns", "output_ns", "sequences", "tokens", "new_tokens"))
"""One engine step: begin stamp, its parts, sequences in it, tokens run, tokens gained."""

MESSAGE = Kind("message", ("stamp_ns", "seq", "frames", "bytes", "duration_ns"))
"""One message through a socket, in one direction: the ``seq``-th, from 0; ``stamp_ns`` is when the call returned."""

LOOP = Kind("loop", ("stamp_ns", "lag_ns", "interval_ns", "busy_ns", "voluntary", "involuntary"))
"""One tick of an event loop's probe: how late it came, time since the last, CPU of the loop's thread in it, context switches in it."""

PROCESS = Kind("process", ("stamp_ns", "pid", "cpu_ns", "rss_bytes", "fds", "voluntary", "involuntary", "threads"))
"""One look at a process from outside: CPU since its start, memory, open files, context switches since its start."""

KINDS = {kind.name: kind for kind in (STEP, MESSAGE, LOOP, PROCESS)}


class EventLog:
    """Appends rows to ``folder/ROLE-PID.KIND[.LABEL].events``. One thread."""

    def __init__(self, folder: Path, writer: str, kind: Kind, label: str = "", *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._width = len(kind.columns)
        self._rows = array("q")
        self._room = limit_bytes // (8 * self._width)
        self.dropped = 0
        self._file: IO[bytes] = (folder / file_name(writer, kind, label)).open("wb", buffering=0)
        header = json.dumps({"writer": writer, "kind": kind.name, "label": label, "columns": kind.columns})
        self._file.write(header.encode().ljust(_HEADER_BYTES - 1) + b"\n")

    def append(self, *row: int) -> None:
        """Add one row: a value per column."""
        if not self._room:
            self.dropped += 1
            return
        self._room -= 1
        self._rows.extend(row)
        if len(self._rows) >= FLUSH_ROWS * self._width:
            self.flush()

    def flush(self) -> None:
        """Hand what is in memory to the file."""
        self._file.write(self._rows.tobytes())
        del self._rows[:]

    def close(self) -> None:
        """Flush and close; idempotent."""
        if not self._file.closed:
            self.flush()
            self._file.close()


@dataclass(frozen=True)
class Events:
    """What one file holds.

    Attributes:
        writer: role and pid of the process, ``engine-4711``.
        label: what its rows are about, for example a socket and its direction.
        rows: int64, [rows, columns].
    """

    writer: str
    kind: Kind
    label: str
    rows: np.ndarray


def read_events(path: Path) -> Events:
    """Read a file, whole rows only.

    Raises:
        ValueError: it is no file of events. OSError.
    """
    data = path.read_bytes()
    header = _header(path, data[:_HEADER_BYTES])
    columns = tuple(header["columns"])
    numbers = np.frombuffer(data[_HEADER_BYTES:][: (len(data) - _HEADER_BYTES) // 8 * 8], dtype=np.int64)
    whole = len(numbers) // len(columns) * len(columns)
    return Events(header["writer"], Kind(header["kind"], columns), header["label"], numbers[:whole].reshape(-1, len(columns)))


def file_name(writer: str, kind: Kind, label: str = "") -> str:
    """How the file of one writer's events is called."""
    return ".".join(filter(None, (writer, kind.name, label))) + SUFFIX


def _header(path: Path, data: bytes) -> dict[str, Any]:
    try:
        return json.loads(data)
    except ValueError as error:
        raise ValueError(f"{path} is no file of events: {error}") from error
