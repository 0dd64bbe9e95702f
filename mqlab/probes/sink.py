"""Where the probes of one role in one process write: its counters, its event files, its lines about requests."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mqlab.record.events import EventLog, Kind
from mqlab.record.requests import SUFFIX as REQUESTS_SUFFIX
from mqlab.record.requests import RequestRow
from mqlab.wire.counters import Block, CounterPage

COUNTERS_SUFFIX = ".counters"


class Lines:
    """A file of one JSON object a line. Each call writes at once: nothing is lost with the process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        weakref.finalize(self, self._file.close)

    def write(self, rows: Iterable[RequestRow]) -> None:
        """Append rows.

        Raises:
            OSError: the disk is full. ValueError: it is closed.
        """
        data = memoryview(msgspec.json.Encoder().encode_lines(rows))
        while data:  # what a disk has room for may be less
            data = data[self._file.write(data) :]

    def close(self) -> None:
        """Idempotent."""
        self._file.close()


class Sink:
    """The files ``folder/ROLE-PID.*`` of this process. Shared by its probes; ``of`` finds it. Gives all back when dropped, too.

    Args:
        folder: made where it is missing.
        role: ``front``, or which of several, ``engine``, that of a process which helps them, or ``observer``.

    Raises:
        OSError: the files cannot be made.
    """

    def __init__(self, folder: Path, role: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._writer = f"{role}-{os.getpid()}"
        self._page = CounterPage.create(folder / (self._writer + COUNTERS_SUFFIX))
        self._files: list[EventLog | Lines] = []
        self.closed = False

    @staticmethod
    def of(folder: Path, role: str) -> Sink:
        """The one that is open in this process, or a new one; from any thread."""
        with _lock:
            sink = _open.get((folder, role))
            if sink is None or sink.closed:
                sink = _open[folder, role] = Sink(folder, role)
            return sink

    @staticmethod
    def is_open(folder: Path, role: str) -> bool:
        """Whether this process writes there in that role already."""
        sink = _open.get((folder, role))
        return sink is not None and not sink.closed

    def block(self, *names: str) -> Block:
        """Counters for one thread to write."""
        return self._page.block(*names)

    def log(self, kind: Kind, label: str = "") -> EventLog:
        """A file of events for one thread to write."""
        log = EventLog(self._folder, self._writer, kind, label)
        self._files.append(log)
        return log

    def lines(self) -> Lines:
        """The file of requests."""
        lines = Lines(self._folder / (self._writer + REQUESTS_SUFFIX))
        self._files.append(lines)
        return lines

    def close(self) -> None:
        """Close every file; idempotent. Nothing may be written afterwards."""
        if self.closed:
            return
        self.closed = True
        for file in self._files:
            file.close()
        self._page.close()


_lock = threading.Lock()
_open: weakref.WeakValueDictionary[tuple[Path, str], Sink] = weakref.WeakValueDictionary()
