"""Throughput over time, read from an engine's shared page by a light thread: the engine and its sockets notice nothing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

from mqlab.types import EngineStats

if TYPE_CHECKING:
    import pandas

INTERVAL_S = 0.1
KEPT = 36_000
"""An hour at INTERVAL_S."""


class Sampler:
    """Reads counters every INTERVAL_S until stopped. The thread knows the reader only, so its owner can be dropped."""

    def __init__(self, read: Callable[[], EngineStats]) -> None:
        self._samples: deque[EngineStats] = deque([read()], maxlen=KEPT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=_sample, args=(read, self._samples, self._stop), name="mqlab-sampler", daemon=True)
        self._thread.start()

    def samples(self) -> list[EngineStats]:
        """All readings so far, oldest first."""
        return list(self._samples)

    def stop(self) -> None:
        """End the thread; idempotent. What was read stays."""
        self._stop.set()
        self._thread.join()


def _sample(read: Callable[[], EngineStats], samples: deque[EngineStats], stop: threading.Event) -> None:
    ended = False
    while not ended:
        ended = stop.wait(INTERVAL_S)
        samples.append(read())


def as_frame(samples: list[EngineStats]) -> pandas.DataFrame:
    """Readings as rates and gauges, one row an interval.

    Columns: ``seconds`` since the first reading, ``generation_tokens_per_s``, ``prompt_tokens_per_s``, ``running``, ``waiting``,
    ``kv_usage`` (0 to 1).
    """
    import pandas

    columns = ["seconds", "generation_tokens_per_s", "prompt_tokens_per_s", "running", "waiting", "kv_usage"]
    return pandas.DataFrame([_row(samples[0], before, now) for before, now in pairwise(samples)], columns=columns, dtype=float)


def _row(first: EngineStats, before: EngineStats, now: EngineStats) -> tuple[float, ...]:
    seconds = max(now.stamp_ns - before.stamp_ns, 1) / 1e9
    return (
        (now.stamp_ns - first.stamp_ns) / 1e9,
        (now.generation_tokens - before.generation_tokens) / seconds,
        (now.prompt_tokens - before.prompt_tokens) / seconds,
        now.running,
        now.waiting,
        now.kv_usage,
    )
