"""How long something takes on a device: by CUDA events, or on a CPU by its clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from mqlab.model.measure.rows import Spread

_WARM_UP = 3
_FLUSH_SHARE = 8
_FLUSH_BYTES = 1 << 30
_CLOCK_WARM_UP = 100
"""Reads of the buffer, some 30 ms, before anything is timed: while a kernel was compiled the clocks of a GPU may have fallen."""


class Timer(Protocol):
    """Times what is called."""

    def time(self, call: Callable[[], object], runs: int) -> Spread:
        """After warm-up, so many runs each by itself, with nothing of its data in a cache."""
        ...

    def run(self, call: Callable[[], object], times: int) -> float:
        """µs of ``times`` runs one behind the other, after one that warms up."""
        ...


class CudaTimer:
    """By events on the current stream. Between two runs a large buffer is read, which leaves the L2 cache full of it and clean, and which
    takes longer than the host takes for the launch that is to be timed: so what is timed is the device, not the host.

    Args:
        device: torch's.
    """

    def __init__(self, device: torch.device) -> None:
        free, _ = torch.cuda.mem_get_info(device)
        size = min(_FLUSH_BYTES, free // _FLUSH_SHARE)
        self._buffer = torch.zeros(size // 4, dtype=torch.float32, device=device)

    def time(self, call: Callable[[], object], runs: int) -> Spread:
        """See Timer. The first runs, which compile, are not counted."""
        for _ in range(_WARM_UP):
            call()
        for _ in range(_CLOCK_WARM_UP):
            self._buffer.sum()
        pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
        for begin, end in pairs:
            self._buffer.sum()
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return spread([begin.elapsed_time(end) * 1e3 for begin, end in pairs])

    def run(self, call: Callable[[], object], times: int) -> float:
        """See Timer."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        call()
        torch.cuda.synchronize()
        begin.record()
        for _ in range(times):
            call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3


class HostTimer:
    """By the host's clock, for a device that computes in the call itself. Caches stay as they are."""

    def time(self, call: Callable[[], object], runs: int) -> Spread:
        """See Timer."""
        return spread([_host_us(call) for _ in range(runs)])

    def run(self, call: Callable[[], object], times: int) -> float:
        """See Timer."""
        return sum(_host_us(call) for _ in range(times))


def timer_for(device: torch.device) -> Timer:
    """The one that tells a device's time."""
    return CudaTimer(device) if device.type == "cuda" else HostTimer()


def spread(times: list[float]) -> Spread:
    """Of times in µs, at least one."""
    low, median, high = np.percentile(times, (10, 50, 90))
    return Spread(float(median), float(low), float(high), len(times))


def _host_us(call: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin) / 1e3
