"""Processes seen from outside: CPU time, memory, open files, threads, context switches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import monotonic_ns, perf_counter_ns

import psutil

from mqlab.probes.base import dropped
from mqlab.probes.sink import Sink
from mqlab.record.events import PROCESS

_FIGURES = ("cpu_ns", "rss_bytes", "fds", "threads", "voluntary", "involuntary")


class ProcessSampler:
    """Looks at processes when told to, and writes as ``observer``. One thread; never raises once it is made.

    Args:
        folder: of the recording.
        pids: what to look at, by role.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, pids: Mapping[str, int]) -> None:
        self._sink = Sink.of(folder, "observer")
        self._own = self._sink.block("probe.process.events", "probe.process.ns", "probe.process.dropped")
        self._watched = {role: _Watched(self._sink, role, pid) for role, pid in pids.items()}
        self._looks = self._spent = 0

    def look(self) -> None:
        """Note every process as it is; one that is gone is skipped from now on."""
        begin = perf_counter_ns()
        for role, watched in list(self._watched.items()):
            try:
                watched.look()
            except psutil.NoSuchProcess:
                del self._watched[role]
            except Exception as error:
                del self._watched[role]
                dropped(f"of process {role}", error)
        self._looks += 1
        # Rare and slow, unlike other probes' events: here each is timed.
        self._spent += perf_counter_ns() - begin
        if not self._sink.closed:
            self._own.write(self._looks, self._spent, 0)

    def close(self) -> None:
        """Close the files; idempotent. A look afterwards does nothing."""
        self._watched.clear()
        self._sink.close()


class _Watched:
    def __init__(self, sink: Sink, role: str, pid: int) -> None:
        self._pid = pid
        self._process: psutil.Process | None = None
        self._block = sink.block(*(f"process.{role}.{figure}" for figure in _FIGURES))
        self._log = sink.log(PROCESS, role)

    def look(self) -> None:
        process = self._process = self._process or psutil.Process(self._pid)
        with process.oneshot():
            times, switches = process.cpu_times(), process.num_ctx_switches()
            cpu, rss = round((times.user + times.system) * 1e9), process.memory_info().rss
            fds, threads = process.num_fds(), process.num_threads()
        self._log.append(monotonic_ns(), self._pid, cpu, rss, fds, switches.voluntary, switches.involuntary, threads)
        self._block.write(cpu, rss, fds, threads, switches.voluntary, switches.involuntary)
