"""Three questions of liveness: is the process alive, does its loop turn, does the engine answer.

The first is the kernel's (a pidfd becomes readable when the process ends). The second is read from the step stamp on the
shared page, by the other side. The third is an ordinary call. A heartbeat thread in the sick process answers none of them.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable

from mqlab.config import Timing
from mqlab.types import Health
from mqlab.wire.process import ENGINE, Child
from mqlab.wire.statspage import Phase, StatsPage

_POLL_S = 0.2


class ExitWatch:
    """Calls back on the event loop when a child ends. Start and close on the loop's thread."""

    def __init__(self, child: Child, on_exit: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._on_exit = on_exit
        self._pidfd: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(child.pid)
            self._loop.add_reader(self._pidfd, self._fire)
        else:  # macOS
            self._poll()

    def _poll(self) -> None:
        if self._child.exit_code() is None:
            self._timer = self._loop.call_later(_POLL_S, self._poll)
        else:
            self._fire()

    def _fire(self) -> None:
        self.close()
        self._on_exit()

    def close(self) -> None:
        """Stop watching; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._pidfd is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None


def judge(page: StatsPage, timing: Timing, role: str = ENGINE) -> Health:
    """Whether the loop behind a page turns, each phase against its own limit: slow is not dead."""
    stamp = page.stamp()
    phase = stamp.phase.name.lower()
    limit = _limit(stamp.phase, timing)
    if stamp.age_s > limit:
        detail = f"the {role} has been in phase {phase} for {stamp.age_s:.1f} s, the limit is {limit:g} s (step_limit)"
        return Health(state="hung", detail=detail, phase=phase, phase_age_s=stamp.age_s)
    return Health(state="ready", phase=phase, phase_age_s=stamp.age_s)


def _limit(phase: Phase, timing: Timing) -> float:
    if phase is Phase.LOADING:
        return math.inf  # at the start start_timeout is its limit, and the client enforces that; later it is up to who asked for it
    if phase is Phase.IDLE:
        return timing.idle_interval + timing.step_limit  # renewed only every idle_interval
    return timing.step_limit
