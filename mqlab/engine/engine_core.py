"""The engine: a scheduler over KV blocks, and a runner."""

from __future__ import annotations

from mqlab.clock import Clock, MonotonicClock
from mqlab.config import EngineConfig
from mqlab.engine.blocks import BlockPool
from mqlab.engine.desk import Desk
from mqlab.engine.scheduler import Scheduler
from mqlab.plan import InFlight, Runner, SampledTokens
from mqlab.types import Call, Delta, Event, Reply, Request
from mqlab.wire.spec import Spec


class EngineCore:
    """Obeys the Core contract with a real scheduler. What a runner raises is fatal and passes through.

    Args:
        runner: its ``info`` gives the pool, the context and the end tokens.
        config: max_num_seqs, max_num_batched_tokens, num_scheduler_steps, async_scheduling, seed.
        clock: stamps the statistics.

    Attributes:
        runner: what computes; a probe may put a wrapper in its place between steps.
    """

    def __init__(self, runner: Runner, config: EngineConfig, clock: Clock) -> None:
        self.info = info = runner.info
        self.runner = runner
        pool = BlockPool(info.num_blocks, info.block_size)
        self._scheduler = Scheduler(
            pool, config.max_num_seqs, config.max_num_batched_tokens, info.eos_token_ids, config.num_scheduler_steps
        )
        depth = 2 if config.async_scheduling else 1
        self._desk = Desk(info, config.seed, clock, self._scheduler.remove, self._scheduler.gauges, depth)
        self.calls = self._desk.calls
        self._closed = False

    @property
    def has_work(self) -> bool:
        """Whether any request is live, or a step in flight."""
        return self._desk.busy

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: it can never run, or its id is live.
        """
        self._scheduler.add(self._desk.admit(request))

    def abort(self, ids: tuple[str, ...], client: int = 0) -> list[Delta]:
        """End these requests of a client; in flight they are only marked."""
        return self._desk.abort(ids, client)

    def call(self, call: Call) -> Reply | None:
        """Run one control call; in flight it waits for ``finish``."""
        return self._desk.call(call)

    def begin(self) -> InFlight:
        """Schedule one step and launch it; with ``async_scheduling`` the step after it too. Returns the older one."""
        return self._desk.depart(self._launch)

    def finish(self, sampled: SampledTokens) -> list[Event]:
        """Account one step and hand out its tokens."""
        return self._desk.settle(zip(self._scheduler.land(), sampled.tokens, strict=True))

    def close(self) -> None:
        """Close the runner; idempotent."""
        if not self._closed:
            self._closed = True
            self._desk.close()
            self.runner.close()

    def _launch(self) -> InFlight | None:
        plan = self._scheduler.schedule()
        return None if plan is None else self.runner.launch(plan)


def build(*, config: EngineConfig, runner: Spec) -> EngineCore:
    """An EngineCore, for ``Spec("mqlab.engine.engine_core:build", {"config": ..., "runner": Spec(...)})``.

    Raises:
        ConfigError, ModelError: whatever the runner refuses.
    """
    return EngineCore(runner.build(), config, MonotonicClock())
