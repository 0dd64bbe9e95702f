"""Who used the processors during a measurement: the processes that belong to it, and everybody else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True)
class CpuReport:
    """CPU use over a stretch of time. Times are the kernel's, of the whole machine and of what has ended in steps of 10 ms.

    Attributes:
        elapsed_s: length of the stretch.
        cores: processors of the machine.
        share: CPUs used by name: 1.5 is one and a half processors. A named process below another counts under its own name only;
            one that nobody named is "self", the process that watches. What had ended before the watch did is absent, unless its
            parent is watched.
        foreign: part of the whole machine, in [0, 1], that others used: busy time of all processors, stolen time included, without ours.
    """

    elapsed_s: float
    cores: int
    share: dict[str, float]
    foreign: float

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        return {"elapsed_s": self.elapsed_s, "cores": self.cores, "cpus_used": self.share, "foreign_share": self.foreign}


class CpuWatch:
    """Context manager; ``report`` is there when it has ended or was stopped.
    Children of a process count with it, also those that ended meanwhile.

    Args:
        processes: pid by name; two names may have one pid.
    """

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._pids = dict(processes)
        if os.getpid() not in self._pids.values():
            self._pids["self"] = os.getpid()
        self.report: CpuReport

    def __enter__(self) -> CpuWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin, or begin anew."""
        self._start = self._read()

    def stop(self) -> None:
        """Make the report; may be called again, for a longer stretch."""
        self.report = compare(self._start, self._read(), self._pids)

    def _read(self) -> Reading:
        return Reading(time.monotonic(), _busy_s(), _used_s(self._pids.values()))


@dataclass(frozen=True)
class Reading:
    """CPU time so far, in s: of the machine, and of each process with its children by pid; a process that is gone has none."""

    at_s: float
    busy_s: float
    used_s: dict[int, float]


def compare(start: Reading, end: Reading, names: Mapping[str, int]) -> CpuReport:
    """What was used between two readings."""
    elapsed = max(end.at_s - start.at_s, 1e-9)
    cores = psutil.cpu_count() or 1
    used = {pid: max(0.0, end.used_s[pid] - start.used_s[pid]) for pid in start.used_s if pid in end.used_s}
    foreign = (end.busy_s - start.busy_s - sum(used.values())) / elapsed / cores
    share = {name: used[pid] / elapsed for name, pid in names.items() if pid in used}
    return CpuReport(elapsed, cores, share, min(max(foreign, 0.0), 1.0))


def _busy_s() -> float:
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def _used_s(pids: Iterable[int]) -> dict[int, float]:
    wanted = set(pids)
    return {pid: used for pid in wanted if (used := _tree_s(pid, wanted - {pid})) is not None}


def _tree_s(pid: int, apart: set[int]) -> float | None:
    """CPU time of a process, of its living descendants without those ``apart``, and of all that they have reaped."""
    try:
        root = psutil.Process(pid)
        own, children = _own_s(root), root.children()
    except psutil.Error:
        return None
    return own + sum(_tree_s(child.pid, apart) or 0.0 for child in children if child.pid not in apart)


def _own_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    own = _clock_s(process.pid) or times.user + times.system
    return own + getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)


def _clock_s(pid: int) -> float | None:
    """CPU time of a process, exact; None where the system has no such clock (Linux has: see clock_getcpuclockid), or not for this one."""
    try:
        return time.clock_gettime(~pid << 3 | 2) if sys.platform == "linux" else None
    except OSError:
        return None
