"""The running engines of this user on this machine, one file each: what another kernel or terminal can find, attach to and stop."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil

from mqlab.config import Settings
from mqlab.errors import ConfigError
from mqlab.wire.rundir import sweep

_FOLDER = "mqlab-engines-"
_KILL_WAIT_S = 5.0
_POLL_S = 0.02


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One running engine.

    Attributes:
        pid: the process to stop: the server, the front of a session, or the engine itself where a notebook's kernel is its front.
        started: when that process started, as ``start_time`` says; tells a process that was given the same pid later.
        role: ``serve`` for a server, ``session`` for a notebook's.
        model: name that it serves.
        topology: layout between front and engine.
        url: of its OpenAI server; None where it has none.
        socket: path of its front's private socket, to attach to; None where it has none.
        owner_pid: who started it: a kernel, or the server itself. Never signalled for a session.
        recording: folder that its processes record into.
    """

    pid: int
    started: float
    role: Literal["serve", "session"]
    model: str
    topology: str
    url: str | None
    socket: str | None
    owner_pid: int
    recording: str | None = None

    @staticmethod
    def of(pid: int, **facts: Any) -> Entry:
        """The entry of a running process, with its start time. ``facts`` are the other fields."""
        return Entry(pid=pid, started=start_time(pid) or 0.0, **facts)

    @property
    def alive(self) -> bool:
        """Whether its process still runs, and is not another one of the same pid."""
        return start_time(self.pid) == self.started

    @property
    def age_s(self) -> float:
        """Seconds since its process started."""
        return max(0.0, _now() - self.started)


class Registry:
    """The folder of entries: of mode 0700 and this user's.

    Args:
        root: where the folder is; by default the runtime folder of the settings.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.folder = (root or Settings.read().runtime_dir) / f"{_FOLDER}{os.getuid()}"

    def entries(self) -> list[Entry]:
        """Everything that runs, oldest first. What processes that ended have left, and files that cannot be read, are removed."""
        if not self._exists():
            return []
        files = self._files()
        found = [entry for path in files if (entry := _read(path)) is not None]
        if len(found) < len(files):
            sweep(self.folder.parent)
        self._remove_empty()
        return sorted(found, key=lambda entry: (entry.started, entry.pid))

    def find(self, address: str) -> Entry | None:
        """What runs under a URL, a socket's path or a pid."""
        wanted = address.rstrip("/")
        return next((entry for entry in self.entries() if wanted in (entry.url, entry.socket, str(entry.pid))), None)

    def add(self, entry: Entry) -> None:
        """Make an engine known; an entry of the same process is replaced.

        Raises:
            ConfigError: the folder belongs to somebody else, or others may write to it.
        """
        while True:
            if not self._exists():
                with contextlib.suppress(FileExistsError):
                    self.folder.mkdir(mode=0o700)
            draft = self.folder / f"{os.getpid()}.{secrets.token_hex(4)}.draft"
            try:
                draft.write_bytes(msgspec.json.encode(entry))
                draft.replace(self._path(entry))
                return
            except FileNotFoundError:  # the last of the others left meanwhile, and took the folder with it
                continue

    def remove(self, entry: Entry) -> None:
        """Forget an engine; one that is not known is fine."""
        self._path(entry).unlink(missing_ok=True)
        self._remove_empty()

    @contextlib.contextmanager
    def known(self, entry: Entry) -> Iterator[None]:
        """Have an engine known while the block runs."""
        self.add(entry)
        try:
            yield
        finally:
            self.remove(entry)

    def stop(self, entry: Entry, grace: float = 10.0) -> bool:
        """End a running engine: SIGTERM, and after ``grace`` seconds SIGKILL. Returns once it has ended, and forgets it.

        Nothing but ``entry.pid`` is signalled, and only while it is the process that was registered.

        Returns:
            whether it still ran.

        Raises:
            ConfigError: it is this process. TimeoutError: it would not end, even by SIGKILL.
        """
        if entry.pid == os.getpid():
            raise ConfigError(f"engine {entry.model!r} runs in this very process ({entry.pid}); stop its session instead")
        stopped = _end(entry, grace)
        self.remove(entry)
        return stopped

    def _files(self) -> list[Path]:
        try:
            return list(self.folder.iterdir())
        except FileNotFoundError:
            return []

    def _remove_empty(self) -> None:
        with contextlib.suppress(OSError):  # others are in it, or it is gone
            self.folder.rmdir()

    def _path(self, entry: Entry) -> Path:
        return self.folder / f"{entry.pid}.json"

    def _exists(self) -> bool:
        """Whether there is a folder.

        Raises:
            ConfigError: it is not this user's alone.
        """
        try:
            found = self.folder.lstat()
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ConfigError(f"{self.folder} must be this user's, with mode 0700; remove it, or set MQLAB_RUNTIME to another place")
        return True


def start_time(pid: int) -> float | None:
    """When a process started, in seconds, on a clock that is never set: the same for all who ask. None where no such process runs."""
    try:
        if sys.platform == "linux":
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return None if state in "ZX" else int(fields[18]) / os.sysconf("SC_CLK_TCK")
        return psutil.Process(pid).create_time()
    except (OSError, psutil.Error):
        return None


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.time()


def _read(path: Path) -> Entry | None:
    """The live entry in a file; a file that holds none is removed."""
    try:
        if path.suffix == ".json":
            entry = msgspec.json.decode(path.read_bytes(), type=Entry)
            if entry.alive:
                return entry
        elif path.suffix == ".draft" and start_time(int(path.name.partition(".")[0])) is not None:
            return None  # it is being written
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        pass
    path.unlink(missing_ok=True)
    return None


def _end(entry: Entry, grace: float) -> bool:
    """Stop a process; whether it ran. A descriptor is taken first, so that it stays the same one between looking and signalling."""
    if not hasattr(os, "pidfd_open"):
        return _end_by_pid(entry, grace)
    try:
        process = os.pidfd_open(entry.pid)
    except ProcessLookupError:
        return False
    try:
        if not entry.alive:
            return False
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILL_WAIT_S)):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)
            if select.select([process], [], [], seconds)[0]:
                return True
    finally:
        os.close(process)
    raise TimeoutError(f"process {entry.pid} did not end within {_KILL_WAIT_S:g} s of SIGKILL")


def _end_by_pid(entry: Entry, grace: float) -> bool:
    """For systems without pidfd (macOS)."""
    if not entry.alive:
        return False
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILL_WAIT_S)):
        if entry.alive:
            os.kill(entry.pid, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not entry.alive:
                return True
            time.sleep(_POLL_S)
    raise TimeoutError(f"process {entry.pid} did not end within {_KILL_WAIT_S:g} s of SIGKILL")
