"""A running engine over time, read from shared memory by one light thread: the engine, its sockets and its loops notice nothing."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mqlab.errors import MqlabError
from mqlab.lab.readings import Counters, History, Reading
from mqlab.probes.proc import ProcessSampler
from mqlab.probes.recording import Recording
from mqlab.probes.sink import Sink
from mqlab.types import EngineStats

if TYPE_CHECKING:
    import pandas

INTERVAL_S = 0.1
KEPT = 36_000
"""An hour at INTERVAL_S."""

EVERY = 5
"""Of the engine's own figures all are kept; of the counters of all processes, every EVERY-th: 2 a second."""

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Sources:
    """What the thread knows: ways to read, never who is read, so that its owner can be dropped."""

    stats: Callable[[], EngineStats]
    counters: Callable[[], Counters]
    look: Callable[[], object]
    close: Callable[[], object]


class Sampler:
    """Reads until stopped: the engine's figures every INTERVAL_S, everything every EVERY-th time. Dashboards and plots share it.

    Args:
        stats: the engine's published figures, such as ``client.glance``.
        counters: all counters of the run, such as ``Recording.read``.
        look: called before each reading of the counters, such as ``ProcessSampler.look``. One that raises is logged and dropped.
        close: called once the last reading is taken.
    """

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        counters: Callable[[], Counters] = dict,
        look: Callable[[], object] = lambda: None,
        close: Callable[[], object] = lambda: None,
    ) -> None:
        first = stats()
        self._samples: deque[EngineStats] = deque([first], maxlen=KEPT)
        self._history = History(KEPT // EVERY)
        self._history.add(Reading(first))
        self._stop = threading.Event()
        sources = _Sources(stats, counters, look, close)
        self._thread = threading.Thread(
            target=_sample, args=(sources, self._samples, self._history, self._stop), name="mqlab-sampler", daemon=True
        )
        self._thread.start()

    @staticmethod
    def of(stats: Callable[[], EngineStats], recording: Path, pids: Mapping[str, int]) -> Sampler:
        """One that reads a recording as well, and looks at processes from outside.

        Args:
            recording: the folder that the run writes into; it becomes an observer there, unless this process has one already.
            pids: of the run's processes, by role.

        Raises:
            OSError: the folder cannot be written.
        """
        pages = Recording(recording)
        if Sink.is_open(recording, "observer"):  # another session of this process looks on: two would write the same files
            return Sampler(stats, pages.read, close=pages.close)
        processes = ProcessSampler(recording, pids)

        def close() -> None:
            processes.close()
            pages.close()

        return Sampler(stats, pages.read, processes.look, close)

    def samples(self) -> list[EngineStats]:
        """All of the engine's figures so far, oldest first."""
        return list(self._samples)

    def readings(self, seconds: float = float("inf")) -> list[Reading]:
        """Figures and counters of the last ``seconds``, oldest first; at least one."""
        return self._history.last(seconds)

    def pulse(self, seconds: float = float("inf")) -> list[EngineStats]:
        """The engine's figures in ``readings``."""
        return self._history.stats(seconds)

    @property
    def stopped(self) -> bool:
        """Whether no more readings will come."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Take the last reading and end the thread; idempotent. What was read stays."""
        self._stop.set()
        self._thread.join()


def _sample(sources: _Sources, samples: deque[EngineStats], history: History, stop: threading.Event) -> None:
    counters, look = _dropped_when_broken(sources.counters, {}), _dropped_when_broken(sources.look, None)
    for turn in count():
        ending = stop.is_set()
        with contextlib.suppress(MqlabError):  # an engine that is gone has no figures, and may have some again
            samples.append(sources.stats())
            if ending or turn % EVERY == 0:
                look()
                history.add(Reading(samples[-1], counters()))
        if ending:
            break
        stop.wait(INTERVAL_S)
    sources.close()


def _dropped_when_broken(source: Callable[[], _T], otherwise: _T) -> Callable[[], _T]:
    """The source until it raises, which is logged once; ``otherwise`` from then on. A probe never ends what it looks at."""
    broken = False

    def guarded() -> _T:
        nonlocal broken
        if broken:
            return otherwise
        try:
            return source()
        except Exception:
            broken = True
            _log.warning("a probe of the dashboard failed and is dropped", exc_info=True)
            return otherwise

    return guarded


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
