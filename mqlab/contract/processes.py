"""Whether a process has ended. A zombie has: in a container whose first process reaps nobody, orphans stay that for ever."""

from __future__ import annotations

import psutil


def ended(process: psutil.Process) -> bool:
    """Whether it runs no more."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def gone(pid: int) -> bool:
    """Whether no process of this id runs."""
    try:
        return ended(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True
