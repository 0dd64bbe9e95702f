"""Whether a process has ended. A zombie has: in a container whose first process reaps nobody, orphans stay that for ever."""

from __future__ import annotations

from pathlib import Path

import psutil


def ended(process: psutil.Process) -> bool:
    """Whether it runs no more."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def stopped(process: psutil.Process) -> bool:
    """Whether each of its threads is stopped: until the last one is, the kernel does not count the process as such."""
    stats = Path(f"/proc/{process.pid}/task").glob("*/stat")
    return all(path.read_text().rpartition(")")[2].split()[0] == "T" for path in stats)


def gone(pid: int) -> bool:
    """Whether no process of this id runs."""
    try:
        return ended(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True
