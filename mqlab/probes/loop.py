"""The lag of an event loop, and what its thread does meanwhile."""

from __future__ import annotations

import asyncio
import resource
import weakref
from collections.abc import Callable
from time import monotonic_ns

from mqlab.probes.base import dropped
from mqlab.probes.cost import cost_ns
from mqlab.probes.sink import Sink
from mqlab.record.events import LOOP

INTERVAL_S = 0.05
"""Between two ticks."""

_INTERVAL_NS = round(INTERVAL_S * 1e9)
# Threads' own figures are Linux's alone; elsewhere they are those of the process.
_WHO = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


class LoopProbe:
    """Ticks on the loop that ``start`` is called on, from then to ``stop``, or until it is dropped; keeps neither loop nor client.

    Args:
        after_tick: called after each tick.
    """

    def __init__(self, sink: Sink, cost_ns: int, after_tick: Callable[[], None]) -> None:
        names = [f"loop.{name}" for name in ("ticks", "lag_ns", "lag_max_ns", "busy_ns", "wall_ns")]
        self._block = sink.block(*names, "probe.loop.events", "probe.loop.ns", "probe.loop.dropped")
        self._log = sink.log(LOOP)
        self._cost_ns = cost_ns
        self._after_tick = after_tick
        self._handle: asyncio.TimerHandle | None = None
        self._ticks = self._lag = self._lag_max = self._busy = self._wall = 0
        self._last = 0, 0, 0, 0

    def start(self) -> None:
        """Begin to tick on the running loop."""
        self._last = _now()
        self._schedule(asyncio.get_running_loop())

    def stop(self) -> None:
        """Tick no more; idempotent."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def tick(self, due_ns: int) -> None:
        """Note one tick, which should have come at ``due_ns``."""
        before, now = self._last, _now()
        self._last = now
        stamp, busy, voluntary, involuntary = now
        lag, interval = max(stamp - due_ns, 0), stamp - before[0]
        self._log.append(stamp, lag, interval, busy - before[1], voluntary - before[2], involuntary - before[3])
        self._ticks += 1
        self._lag += lag
        self._lag_max = max(self._lag_max, lag)
        self._busy += busy - before[1]
        self._wall += interval
        cost = self._ticks * self._cost_ns
        self._block.write(self._ticks, self._lag, self._lag_max, self._busy, self._wall, self._ticks, cost, self._log.dropped)

    def turn(self, loop: asyncio.AbstractEventLoop, due_ns: int) -> None:
        """The loop's timer is up: note it, and set the next."""
        try:
            self.tick(due_ns)
        except Exception as error:
            dropped("loop", error)
            return
        self._after_tick()
        self._schedule(loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        me: weakref.ref[LoopProbe] = weakref.ref(self)
        self._handle = loop.call_later(INTERVAL_S, _turn, me, loop, monotonic_ns() + _INTERVAL_NS)


def _turn(probe: weakref.ref[LoopProbe], loop: asyncio.AbstractEventLoop, due_ns: int) -> None:
    strong = probe()
    if strong is not None:
        strong.turn(loop, due_ns)


def _now() -> tuple[int, int, int, int]:
    """Stamp, CPU time of this thread in ns, its voluntary and involuntary context switches."""
    usage = resource.getrusage(_WHO)
    return monotonic_ns(), round((usage.ru_utime + usage.ru_stime) * 1e9), usage.ru_nvcsw, usage.ru_nivcsw


def loop_probe(sink: Sink, after_tick: Callable[[], None]) -> LoopProbe:
    """A probe that knows what it costs."""
    return LoopProbe(sink, cost_ns(rehearse), after_tick)


def rehearse(sink: Sink) -> Callable[[], object]:
    """A tick, without what is called after it."""
    probe = LoopProbe(sink, 0, _nothing)
    return lambda: probe.tick(0)


def _nothing() -> None:
    """After a tick that nobody waits for."""
