"""Events of one process on disk: rows of whole numbers, in the file as soon as they are appended, readable while they are written.

A file is a JSON line that names the columns, then int64 rows, then perhaps zeros: room for more. The writer fills a window of the file
that it maps, so there is nothing to flush, and one that is killed loses nothing. One writer thread each.
"""

from __future__ import annotations

import json
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

SUFFIX = ".events"
LIMIT_BYTES = 64 << 20
"""What one file may hold; after that events are only counted."""

HEADER_BYTES = 1 << 14
"""Every file begins with as many; one with fewer is still being made."""

_WINDOW_ROWS = 2048  # times 8 bytes: whole pages, whatever the columns, for pages of up to 16 KiB


@dataclass(frozen=True)
class Kind:
    """A kind of event: its name and its columns, each a whole number; ``stamp_ns`` (CLOCK_MONOTONIC) comes first."""

    name: str
    columns: tuple[str, ...]


STEP = Kind("step", ("stamp_ns", "schedule_ns", "launch_ns", "device_ns", "sample_ns", "output_ns", "sequences", "tokens", "new_tokens"))
"""One engine step: begin stamp, its parts, sequences in it, tokens run, tokens sampled (also for requests that were aborted meanwhile)."""

MESSAGE = Kind("message", ("stamp_ns", "seq", "frames", "bytes", "duration_ns"))
"""One message through a socket, in one direction: the ``seq``-th, from 0; ``stamp_ns`` is when the call returned, ``duration_ns`` how
long it took: with the wait for room where a send had to, 0 where a receive had to wait for the message."""

LOOP = Kind("loop", ("stamp_ns", "lag_ns", "interval_ns", "busy_ns", "voluntary", "involuntary"))
"""One tick of an event loop's probe: how late it came, time since the last, CPU of the loop's thread in it, context switches in it."""

PROCESS = Kind("process", ("stamp_ns", "pid", "cpu_ns", "rss_bytes", "fds", "voluntary", "involuntary", "threads"))
"""One look at a process from outside: CPU since its start, memory, open files, context switches since its start."""

KINDS = {kind.name: kind for kind in (STEP, MESSAGE, LOOP, PROCESS)}


class EventLog:
    """Appends rows to ``folder/ROLE-PID.KIND[.LABEL].events``. One thread.

    Args:
        limit_bytes: rows beyond it are dropped; rounded down to whole windows of 2048 rows.

    Attributes:
        dropped: rows that were not written, because the file is full.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, folder: Path, writer: str, kind: Kind, label: str = "", *, limit_bytes: int = LIMIT_BYTES) -> None:
        row = struct.Struct(f"{len(kind.columns)}q")
        self._pack = row.pack_into
        self._row_bytes = row.size
        self._window_bytes = _WINDOW_ROWS * row.size
        self._room = limit_bytes // self._window_bytes
        self._path = folder / file_name(writer, kind, label)
        self._file_bytes = HEADER_BYTES
        self._window: Any = None  # of type mmap, once there is a row
        self._at = self._end = 0
        self.dropped = 0
        header = json.dumps({"writer": writer, "kind": kind.name, "label": label, "columns": kind.columns})
        self._path.write_bytes(header.encode().ljust(HEADER_BYTES - 1) + b"\n")

    def append(self, *row: int) -> None:
        """Add one row: a value per column, the stamp not 0.

        Raises:
            OSError: the disk is full, or the file is gone. struct.error: not one whole number a column.
        """
        at = self._at
        if at == self._end:
            if not self._grow():
                self.dropped += 1
                return
            at = 0
        self._pack(self._window, at, *row)
        self._at = at + self._row_bytes

    def extend(self, rows: memoryview) -> None:
        """Add whole rows of int64, given as bytes: for many a tenth of the work of ``append``.

        Raises:
            OSError: the disk is full, or the file is gone.
        """
        while rows:
            if self._at == self._end and not self._grow():
                self.dropped += len(rows) // self._row_bytes
                return
            part = rows[: self._end - self._at]
            self._window[self._at : self._at + len(part)] = part
            self._at += len(part)
            rows = rows[len(part) :]

    def close(self) -> None:
        """Give back the room that was not used; idempotent. Nothing may be appended afterwards."""
        if self._window is None:
            return
        unused = self._end - self._at
        self._window.close()
        self._window = None
        self._at = self._end = self._room = 0
        with self._path.open("r+b") as file:
            file.truncate(self._file_bytes - unused)

    def _grow(self) -> bool:
        """Map the next window; False where the file is as large as it may be."""
        if not self._room:
            return False
        self._room -= 1
        with self._path.open("r+b") as file:
            file.seek(self._file_bytes)
            # Written, not only sized: a disk that is full must say so here, not by a signal when a row is stored.
            file.write(bytes(self._window_bytes))
            file.flush()
            self._window = mmap.mmap(file.fileno(), self._window_bytes, offset=self._file_bytes)
        self._file_bytes += self._window_bytes
        self._at, self._end = 0, self._window_bytes
        return True


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
    import numpy as np

    data = path.read_bytes()
    header = _header(path, data[:HEADER_BYTES])
    columns = tuple(header["columns"])
    whole = max(len(data) - HEADER_BYTES, 0) // (8 * len(columns))
    rows = np.frombuffer(data, np.int64, whole * len(columns), HEADER_BYTES if whole else 0).reshape(-1, len(columns))
    # Stamps come first and are never 0, and rows are written in order: the first 0 is where the room begins.
    written = int(np.searchsorted(rows[:, 0] == 0, True))
    return Events(header["writer"], Kind(header["kind"], columns), header["label"], rows[:written])


def file_name(writer: str, kind: Kind, label: str = "") -> str:
    """How the file of one writer's events is called."""
    return ".".join(filter(None, (writer, kind.name, label))) + SUFFIX


def _header(path: Path, data: bytes) -> dict[str, Any]:
    try:
        return json.loads(data)
    except ValueError as error:
        raise ValueError(f"{path} is no file of events: {error}") from error
