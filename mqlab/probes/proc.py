"""Processes seen from outside: CPU time, memory, open files, threads, context switches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import monotonic_ns, perf_counter_ns

import psutil

from mqlab.probes.base import dropped
from mqlab.probes.sink import Sink
from mqlab.record.events import PROCESS
from mqlab.wire.process import RANK
from mqlab.wire.ranks import with_ranks

_FIGURES = ("cpu_ns", "rss_bytes", "fds", "threads", "voluntary", "involuntary")

_RANKS_EVERY = 10
"""Looks between two at which processes there are: ranks come and go with models."""


class ProcessSampler:
    """Looks at processes when told to, and writes as ``observer``. One thread; never raises once it is made.

    Args:
        folder: of the recording.
        pids: what to look at, by role; the ranks of an ``engine`` among them are found by themselves.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, pids: Mapping[str, int]) -> None:
        self._sink = Sink.of(folder, "observer")
        self._own = self._sink.block("probe.process.events", "probe.process.ns", "probe.process.dropped")
        self._pids = {role: pid for role, pid in pids.items() if not role.startswith(RANK)}
        self._known = {role: _Watched(self._sink, role, pid) for role, pid in self._pids.items()}
        self._watched = dict(self._known)
        self._dropped = set[str]()
        self._looks = self._spent = 0

    def look(self) -> None:
        """Note every process as it is; one that is gone is skipped from now on."""
        begin = perf_counter_ns()
        if self._looks % _RANKS_EVERY == 0 and not self._sink.closed:
            try:
                self._look_for_ranks()
            except Exception as error:
                dropped("of ranks", error)
        for role, watched in list(self._watched.items()):
            try:
                watched.look()
            except psutil.NoSuchProcess:
                watched.leave()
                del self._watched[role]
            except Exception as error:
                del self._watched[role]
                self._dropped.add(role)
                dropped(f"of process {role}", error)
        self._looks += 1
        # Rare and slow, unlike other probes' events: here each is timed.
        self._spent += perf_counter_ns() - begin
        if not self._sink.closed:
            self._own.write(self._looks, self._spent, 0)

    def _look_for_ranks(self) -> None:
        ranks = {role: pid for role, pid in with_ranks(self._pids).items() if role not in self._pids}
        for role in [role for role in self._watched if role not in self._pids and role not in ranks]:
            self._watched.pop(role).leave()
        for role, pid in ranks.items():
            if role in self._dropped:
                continue
            if role not in self._known:
                self._known[role] = _Watched(self._sink, role, pid)
            self._known[role].follow(pid)
            self._watched[role] = self._known[role]

    def close(self) -> None:
        """Close the files; idempotent. A look afterwards does nothing."""
        self._watched.clear()
        self._known.clear()
        self._sink.close()


class _Watched:
    def __init__(self, sink: Sink, role: str, pid: int) -> None:
        self._block = sink.block(*(f"process.{role}.{figure}" for figure in _FIGURES))
        self._log = sink.log(PROCESS, role)
        self._who = sink.block(f"process.{role}.pid")
        self._pid = 0
        self._process: psutil.Process | None = None
        self.follow(pid)

    def follow(self, pid: int) -> None:
        """Look at this process from now on: a rank of the next model has the role of one that is gone."""
        if pid != self._pid:
            self._pid, self._process = pid, None
            self._who.write(pid)

    def look(self) -> None:
        process = self._process = self._process or psutil.Process(self._pid)
        with process.oneshot():
            times, switches = process.cpu_times(), process.num_ctx_switches()
            cpu, rss = round((times.user + times.system) * 1e9), process.memory_info().rss
            fds, threads = process.num_fds(), process.num_threads()
        self._log.append(monotonic_ns(), self._pid, cpu, rss, fds, switches.voluntary, switches.involuntary, threads)
        self._block.write(cpu, rss, fds, threads, switches.voluntary, switches.involuntary)

    def leave(self) -> None:
        """It is gone: what it used stays as it was, and nobody has its pid."""
        self._pid = 0
        self._who.write(0)
