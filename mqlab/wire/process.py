"""Launching an engine process, or one that helps it, and ending it in bounded time."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

from mqlab.wire.report import ReportReader
from mqlab.wire.spawn import spawn
from mqlab.wire.spec import Spec

ENGINE = "engine"
"""Role of the process that owns the core."""

RANK = "rank-"
"""How the role of a process begins that holds a share of the engine's model; its number follows."""

_TAIL_BYTES = 4096
_LESS_MEMORY = "lower --kv-cache-gb, or serve a smaller model"


class Child:
    """A running child. Dropped without a stop, it is killed and reaped; at interpreter exit its owner sees to that, or the pipe does."""

    def __init__(self, role: str, popen: subprocess.Popen[bytes], life_fd: int, report_fd: int, log: Path | None) -> None:
        self.role = role
        self._popen = popen
        self._log = log
        self.reports = ReportReader(report_fd)
        self.pid = popen.pid
        self._stops = StopWatch(popen.pid)
        self._finalizer = weakref.finalize(self, _end, popen, (life_fd, report_fd))
        # At exit the owner goes first: a loop thread that still reads these pipes must let go of them before they are closed.
        self._finalizer.atexit = False

    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._popen.poll()

    def stopped_for(self) -> float:
        """Seconds since it was first seen stopped by a signal; 0 while it is not. Linux; elsewhere always 0."""
        return self._stops.stopped_for()

    def terminate(self) -> None:
        """Ask it to stop: SIGTERM. Only ever to this child, and only while it is one."""
        if self._popen.poll() is None:
            self._popen.terminate()

    def kill(self) -> None:
        """End it now: SIGKILL, which a stopped or hung process obeys too."""
        if self._popen.poll() is None:
            self._popen.kill()

    def reap(self) -> None:
        """Kill it if it still runs, collect its exit status, close its pipes. Idempotent."""
        self._finalizer()

    def log_tail(self) -> str:
        """The last lines that it wrote to its log; empty where the log went to the terminal."""
        return "" if self._log is None else log_tail(self._log)

    def describe_exit(self) -> str:
        """How it ended, in words."""
        code, name = self._popen.poll(), f"{self.role} process {self.pid}"
        if code is None:
            return f"{name} is running"
        if code == -signal.SIGKILL:
            remedy = f": {_LESS_MEMORY}" if self.role == ENGINE or self.role.startswith(RANK) else ""
            return f"{name} was killed by SIGKILL; where nobody did that, memory ran out{remedy}"
        if code < 0:
            return f"{name} was killed by {signal.Signals(-code).name}"
        return f"{name} exited with code {code}"


class StopWatch:
    """For how long a process has been stopped by a signal, as far as it was looked at."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since: float | None = None

    def stopped_for(self) -> float:
        """Seconds since it was first seen stopped; 0 while it is not. Linux; elsewhere always 0."""
        if _state(self._pid) != "T":
            self._since = None
            return 0.0
        if self._since is None:
            self._since = time.monotonic()
        return time.monotonic() - self._since


def log_tail(path: Path) -> str:
    """The last lines of a log; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def log_tails(run_dir: Path) -> str:
    """The last lines of every log in a run folder, the engine's first; of several each under its name."""
    logs = sorted(run_dir.glob("*.log"), key=lambda path: (path.stem != ENGINE, path.stem))
    if len(logs) == 1:
        return log_tail(logs[0])
    return "\n".join(f"{path.name}:\n{tail}" for path in logs if (tail := log_tail(path)))


def launch(entry: Spec, run_dir: Path, role: str = ENGINE, *, log_to_terminal: bool = False, inherit: tuple[int, ...] = ()) -> Child:
    """Start ``entry.build(reporter, run_dir)`` in a new process, as a command of its own.

    The child is in a process group of its own, so that an interrupt in the notebook or the terminal does not reach it, but in the
    parent's session: when the parent dies, the kernel then continues a stopped child, which can leave. Call from a thread that
    lives at least as long as the child should (the kernel ties the parent-death signal to it).

    Args:
        entry: what to run; resolved in the child.
        run_dir: its private folder; its log is written there, as ROLE.log, unless ``log_to_terminal``.
        role: what it is for, as its command line, its log and whatever is told of it name it.
        inherit: open files that it is given, under their numbers.
    """
    life_read, life_write = os.pipe()
    report_read, report_write = os.pipe()
    log = None if log_to_terminal else run_dir / f"{role}.log"
    command = [sys.executable, "-P", "-m", "mqlab.wire.boot", str(life_read), str(report_write), str(os.getpid()), str(run_dir), role]
    try:
        popen = _start(command, (life_read, report_write, *inherit), log)
    except BaseException:
        os.close(life_write)
        os.close(report_read)
        raise
    finally:
        os.close(life_read)
        os.close(report_write)
    child = Child(role, popen, life_write, report_read, log)
    _send_entry(popen, entry)
    return child


def _start(command: list[str], pass_fds: tuple[int, ...], log: Path | None) -> subprocess.Popen[bytes]:
    with Path(log or os.devnull).open("ab") as sink:
        return spawn(
            command,
            stdin=subprocess.PIPE,
            stdout=sink if log or not _is_open(1) else None,
            stderr=sink if log or not _is_open(2) else None,
            pass_fds=pass_fds,
            process_group=0,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _send_entry(popen: subprocess.Popen[bytes], entry: Spec) -> None:
    assert popen.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once; whoever watches it reports that
        popen.stdin.write(pickle.dumps(sys.path) + pickle.dumps(entry))
        popen.stdin.close()


def _state(pid: int) -> str:
    """The process state letter of proc(5); empty where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def _end(popen: subprocess.Popen[bytes], fds: tuple[int, ...]) -> None:
    if popen.poll() is None:
        popen.kill()
        popen.wait()
    for fd in fds:
        os.close(fd)
