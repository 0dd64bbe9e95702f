"""A recording, read from outside while it grows: the counters of every process that writes into its folder."""

from __future__ import annotations

import re
import shutil
from datetime import datetime
from pathlib import Path

import psutil

from mqlab.config import Settings
from mqlab.probes.base import attempt
from mqlab.probes.sink import COUNTERS_SUFFIX
from mqlab.wire.counters import CounterPage

KEPT = 20
"""Recordings that a root holds; the oldest goes when another is made."""

_NAME = re.compile(r"\d{8}-\d{6}-\d{6}-")
_UNFIT = re.compile(r"[^\w.-]+")


class Recording:
    """The counters in a folder. Pages are opened once; what a process wrote last can be read after its end, and when the files are gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pages: dict[str, tuple[int, CounterPage]] = {}

    def processes(self) -> dict[str, int]:
        """Who writes, or wrote, and its pid: ``{"front-123": 123}``."""
        self._look()
        return {writer: int(writer.rpartition("-")[2]) for writer in self._pages}

    def read(self) -> dict[str, dict[str, int]]:
        """Every counter by name, by writer, as of now."""
        self._look()
        return {writer: page.read() for writer, (_, page) in self._pages.items()}

    def close(self) -> None:
        """Let go of the pages; idempotent."""
        for _, page in self._pages.values():
            page.close()
        self._pages.clear()

    def _look(self) -> None:
        """Open pages that are new, and those that a later client of the same process has replaced."""
        for path in sorted(self.folder.glob(f"*-*{COUNTERS_SUFFIX}")):
            writer = path.name.removesuffix(COUNTERS_SUFFIX)
            try:
                inode = path.stat().st_ino
                if writer not in self._pages or self._pages[writer][0] != inode:
                    self._pages[writer] = inode, CounterPage.open(path)
            except FileNotFoundError:  # gone since it was listed
                continue


def new_recording(root: Path, name: str) -> Path:
    """A new folder ``root/YYYYmmdd-HHMMSS-ffffff-NAME`` to record into; of the others there the newest 19 are kept, and those in use.

    Raises:
        OSError: it cannot be made.
    """
    folder = root / f"{datetime.now():%Y%m%d-%H%M%S-%f}-{_UNFIT.sub('-', name)}"
    folder.mkdir(parents=True)
    others = sorted(path for path in root.iterdir() if path.is_dir() and _NAME.match(path.name))
    for old in others[:-KEPT]:
        if not _in_use(old):
            shutil.rmtree(old, ignore_errors=True)
    return folder


def begin_recording(name: str) -> Path | None:
    """A new recording in mqlab's cache; None, with a warning, where that cannot be written: an engine runs without one, too."""
    return attempt("recording", lambda: new_recording(recordings_root(), name), None)


def recordings_root() -> Path:
    """Where recordings lie, in mqlab's cache."""
    return Settings.read().cache_dir.resolve() / "recordings"


def _in_use(folder: Path) -> bool:
    """Whether a process that writes into it, or into a folder in it, lives."""
    pids = (path.name.removesuffix(COUNTERS_SUFFIX).rpartition("-")[2] for path in folder.rglob(f"*-*{COUNTERS_SUFFIX}"))
    return any(pid.isdigit() and psutil.pid_exists(int(pid)) for pid in pids)
