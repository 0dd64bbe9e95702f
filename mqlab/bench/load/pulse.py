"""How busy this process is, and how late its event loop runs."""

from __future__ import annotations

import asyncio
import os
import time

from mqlab.bench.load.messages import WorkerLoad

_TICK_S = 0.02
_TICKS_PER_WINDOW = 25


class Pulse:
    """Ticks from now on, until stopped. Make it on a running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lags: list[float] = []
        self._shares: list[float] = []
        self._began = self._window = self._now()
        self._due = self._loop.time() + _TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)

    def stop(self) -> WorkerLoad:
        """End it; what was seen."""
        self._timer.cancel()
        wall, cpu = self._since(self._began)
        self._shares.append(cpu / wall)
        # Plain Python: numpy imports more of itself when asked for a percentile, and all file descriptors may be sockets by now.
        lags = sorted(self._lags) or [0.0]
        lag = lags[round(0.99 * (len(lags) - 1))]
        return WorkerLoad(pid=os.getpid(), cpu_s=cpu, wall_s=wall, busiest=max(self._shares), lag_p99_s=lag)

    def _tick(self) -> None:
        now = self._loop.time()
        self._lags.append(max(0.0, now - self._due))
        if len(self._lags) % _TICKS_PER_WINDOW == 0:
            wall, cpu = self._since(self._window)
            self._shares.append(cpu / wall)
            self._window = self._now()
        self._due = now + _TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)

    def _since(self, start: tuple[float, float]) -> tuple[float, float]:
        wall, cpu = self._now()
        return max(wall - start[0], 1e-9), cpu - start[1]

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.monotonic(), time.process_time()
