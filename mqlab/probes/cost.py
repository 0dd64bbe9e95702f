"""What one event of a probe costs on this machine."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from mqlab.probes.sink import Sink

_ROUNDS = 5
_EVENTS = 20

_lock = threading.Lock()

Rehearsal = Callable[[Sink], Callable[[], object]]
"""Makes a probe on a scratch sink, and returns what has it note one event."""


def cost_ns(rehearsal: Rehearsal) -> int:
    """Nanoseconds an event: the fastest of five rounds of 20. Measured once a process, in a few milliseconds: the probe then only counts.

    Raises:
        OSError: there is no room for a scratch file.
    """
    with _lock:  # two threads that measure at once would measure each other
        return _measured(rehearsal)


@cache
def _measured(rehearsal: Rehearsal) -> int:
    with tempfile.TemporaryDirectory(prefix="mqlab-", ignore_cleanup_errors=True) as folder:
        sink = Sink(Path(folder), "scratch")
        event = rehearsal(sink)
        cost = min(_round_ns(event) for _ in range(_ROUNDS)) // _EVENTS
        sink.close()
        return cost


def _round_ns(event: Callable[[], object]) -> int:
    begin = time.perf_counter_ns()
    for _ in range(_EVENTS):
        event()
    return time.perf_counter_ns() - begin
