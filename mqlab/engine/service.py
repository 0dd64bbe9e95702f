"""A core in service: what every layout does around one, and none of it a socket.

Stamps the phase of the loop on the shared page, publishes counters, writes the engine's own log line, makes replies plain.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable

from mqlab.engine.core import Core, apply, no_op, step
from mqlab.plan import InFlight, SampledTokens
from mqlab.types import Call, Command, Dead, EngineStats, Event, Model, ModelInfo, Reply
from mqlab.wire.codecs import as_plain
from mqlab.wire.statspage import Phase, StatsPage

logger = logging.getLogger("mqlab.engine")


class Service:
    """One core, its page and its log. Same thread rules as the core."""

    def __init__(self, core: Core, page: StatsPage, log_stats_interval: float) -> None:
        self._core = core
        self._page = page
        self._log = StatsLog(log_stats_interval)
        self.idle()

    @property
    def info(self) -> ModelInfo:
        """What clients must know."""
        return self._core.info

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._core.has_work

    @property
    def loading(self) -> bool:
        """Whether the next step, or the one in flight, is part of a load."""
        return self._core.loading

    def apply(self, command: Command) -> list[Event]:
        """Hand over one command; returns what must be answered at once."""
        if type(command) is Call:
            stamp = self._page.stamp()
            self._page.enter(Phase.CALL)
            events = apply(self._core, command)
            if any(type(event) is Model for event in events):
                self._page.write(self._core.calls["stats"]())
            self._page.enter(stamp.phase)
            return [_plain(event) for event in events]
        return apply(self._core, command)

    def step(self, on_device_busy: Callable[[], None] = no_op) -> list[Event]:
        """One whole step, stamped."""
        self._enter_step()
        return self._account(step(self._core, on_device_busy))

    def begin(self) -> InFlight:
        """Schedule and launch, stamped; for layouts that wait elsewhere."""
        self._enter_step()
        return self._core.begin()

    def finish(self, sampled: SampledTokens) -> list[Event]:
        """Account a step that ``begin`` launched."""
        return self._account(self._core.finish(sampled))

    def _enter_step(self) -> None:
        self._page.enter(Phase.LOADING if self._core.loading else Phase.STEP)

    def _account(self, events: list[Event]) -> list[Event]:
        self._settle()
        return [_plain(event) for event in events]

    def idle(self) -> None:
        """The loop turns with nothing to do: see that the core is well, stamp, publish, log.

        Raises:
            whatever the core's next step would fail of.
        """
        self._core.check()
        self._settle()

    def _settle(self) -> None:
        self._page.enter(Phase.IDLE)
        stats = self._core.calls["stats"]()
        self._page.write(stats)
        self._log.maybe(stats)

    def close(self) -> None:
        """Free the core."""
        self._core.close()


def _plain(event: Event) -> Event:
    """Reply values as builtins, so that every codec and none gives the caller the same."""
    if type(event) is not Reply:
        return event
    try:
        return Reply(event.id, as_plain(event.value), event.error, event.client)
    except ValueError as error:
        return Reply(event.id, error=f"the call's result cannot be sent: {error}", client=event.client)


def died_of(error: Exception) -> Dead:
    """The last event of an engine."""
    return Dead(f"the engine failed: {type(error).__name__}: {error}", "".join(traceback.format_exception(error)))


class StatsLog:
    """The engine's own log line, at most every ``interval`` seconds, silent while nothing happens."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last = EngineStats()
        self._last_time = time.monotonic()

    def maybe(self, stats: EngineStats) -> None:
        """Log when the interval has passed and anything changed."""
        seconds = time.monotonic() - self._last_time
        if not self._interval or seconds < self._interval:
            return
        if stats.steps != self._last.steps or stats.running or stats.waiting:
            logger.info("%s", throughput_line(stats, self._last, seconds))
        self._last, self._last_time = stats, time.monotonic()


def throughput_line(now: EngineStats, before: EngineStats, seconds: float) -> str:
    """What an engine did between two readings, as one line."""
    return (
        f"prompt {(now.prompt_tokens - before.prompt_tokens) / seconds:.1f} tokens/s, "
        f"generation {(now.generation_tokens - before.generation_tokens) / seconds:.1f} tokens/s, "
        f"running {now.running}, waiting {now.waiting}, KV cache {now.kv_usage:.1%}, preemptions {now.preemptions}"
    )
