"""What a test may leave behind on the machine: processes, threads, files. Snapshots of it, and their difference."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

from mqlab.wire.registry import Registry

# Made by libraries (pyzmq, tqdm, IPython, multiprocessing) on first use, for the life of the process.
_LIBRARY_THREADS = {"GarbageCollectorThread", "TMonitor", "HistorySavingThread"}
_LIBRARY_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

_MAX_ENVIRON = 1 << 20


@dataclass(frozen=True)
class Snapshot:
    """Everything that counts, at one moment; processes as (pid, start time)."""

    processes: frozenset[tuple[int, float]]
    threads: frozenset[threading.Thread]
    files: frozenset[Path]

    def new_since(self, before: Snapshot) -> list[str]:
        """One line for each thing that ``before`` did not have."""
        return [
            *(_describe_process(pid) for pid, _ in sorted(self.processes - before.processes)),
            *(f"thread {thread.name} (daemon={thread.daemon})" for thread in self.threads - before.threads),
            *(f"file {path}" for path in sorted(self.files - before.files)),
        ]


def snapshot(runtime: Path) -> Snapshot:
    """The state now: descendants and orphans of this session, live threads, files in ``runtime`` and in shared memory."""
    Registry(runtime).entries()  # drops those that no longer run, as anybody's next look does
    threads = {thread for thread in threading.enumerate() if type(thread).__name__ not in _LIBRARY_THREADS}
    return Snapshot(_processes(runtime), frozenset(threads), frozenset(runtime.rglob("*")) | _shared_memory())


def _processes(runtime: Path) -> frozenset[tuple[int, float]]:
    found = set(psutil.Process().children(recursive=True))
    found.update(_orphans(runtime))
    return frozenset((process.pid, process.create_time()) for process in found if not _belongs_to_a_library(process))


def _orphans(runtime: Path) -> set[psutil.Process]:
    """Processes whose parent died: no longer our descendants, but they carry this session's MQLAB_RUNTIME."""
    mark = f"MQLAB_RUNTIME={runtime}\0".encode()
    return {process for pid in psutil.pids() if pid != os.getpid() and mark in _environ(pid) and (process := _find(pid))}


def _environ(pid: int) -> bytes:
    """As the process was started with. Read for every process of the machine, twice a test, so without a Path and a file object."""
    try:
        fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(fd, _MAX_ENVIRON) + b"\0"
    except OSError:
        return b""
    finally:
        os.close(fd)


def _find(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _belongs_to_a_library(process: psutil.Process) -> bool:
    try:
        return any(name in " ".join(process.cmdline()) for name in _LIBRARY_PROCESSES)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _describe_process(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"process {pid} ({process.status()}): {' '.join(process.cmdline())[:200] or process.name()}"
    except psutil.Error:
        return f"process {pid}"


def _shared_memory() -> frozenset[Path]:
    """Segments that carry our name; other programs on the machine own the rest."""
    return frozenset(Path("/dev/shm").glob("mqlab*"))
