"""CPU time of each thread of a process as the operating system counts it, over a while."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds that a thread ran, and that it was ready to run while no core was free."""

    ran: float
    queued: float

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.ran - other.ran, self.queued - other.queued)


class ThreadTimes:
    """What the threads of a process spent since ``begin``, up to the last ``update``; a thread that ended keeps what it had.

    Linux tells in nanoseconds (/proc/PID/task/TID/schedstat); elsewhere psutil tells in clock ticks and queueing is unknown, and macOS
    tells nothing but to root.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._first: dict[int, Spent] = {}
        self._last: dict[int, Spent] = {}
        self._names: dict[int, str] = {}

    def begin(self) -> None:
        """Count from here."""
        self._first = self._read()
        self._last = dict(self._first)

    def update(self) -> None:
        """Look again; nothing before ``begin``, and where the process is gone."""
        if self._first:
            self._last.update(self._read())

    def spent(self) -> dict[int, Spent]:
        """By thread id."""
        return {tid: now - self._first.get(tid, Spent(0.0, 0.0)) for tid, now in self._last.items()}

    @property
    def queued_s(self) -> float:
        """Seconds that threads waited for a core, all together."""
        return sum(spent.queued for spent in self.spent().values())

    def cpu_s(self, known: dict[int, str]) -> dict[str, float]:
        """CPU seconds by name: the ``known`` one, else the system's with the mark "(native)"; equal names are one."""
        sums: defaultdict[str, float] = defaultdict(float)
        for tid, spent in self.spent().items():
            sums[known.get(tid) or f"{self._names.get(tid, tid)} (native)"] += spent.ran
        return dict(sums)

    def _read(self) -> dict[int, Spent]:
        tasks = Path(f"/proc/{self._pid}/task")
        found = dict(_of_linux(tasks) if tasks.is_dir() else _of_psutil(self._pid))
        for tid in found.keys() - self._names.keys():
            with suppress(OSError):
                self._names[tid] = (tasks / str(tid) / "comm").read_text().strip()
        return found


def _of_linux(tasks: Path) -> Iterator[tuple[int, Spent]]:
    for task in tasks.glob("[0-9]*"):
        with suppress(OSError):
            ran, queued, _ = (task / "schedstat").read_text().split()
            yield int(task.name), Spent(int(ran) / 1e9, int(queued) / 1e9)


def _of_psutil(pid: int) -> Iterator[tuple[int, Spent]]:
    with suppress(psutil.Error):
        for thread in psutil.Process(pid).threads():
            yield thread.id, Spent(thread.user_time + thread.system_time, 0.0)
