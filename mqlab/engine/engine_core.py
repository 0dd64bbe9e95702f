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
        config: max_num_seqs, max_num_batched_tokens, seed.
        clock: stamps the statistics.
    """

    def __init__(self, runner: Runner, config: EngineConfig, clock: Clock) -> None:
        self.info = info = runner.info
        self._runner = runner
        pool = BlockPool(info.num_blocks, info.block_size)
        self._scheduler = Scheduler(pool, config.max_num_seqs, config.max_num_batched_tokens, info.eos_token_ids)
        self._desk = Desk(info, config.seed, clock, self._scheduler.remove, self._scheduler.gauges)
        self.calls = self._desk.calls
        self._closed = False

    @property
    def has_work(self) -> bool:
        """Whether any request is live."""
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
        """Schedule one step and launch it."""
        flight = self._runner.launch(self._scheduler.schedule())
        self._desk.depart()
        return flight

    def finish(self, sampled: SampledTokens) -> list[Event]:
        """Account one step and hand out its tokens."""
        return self._desk.settle(zip(self._scheduler.advance(), sampled.tokens, strict=True))

    def close(self) -> None:
        """Close the runner; idempotent."""
        if not self._closed:
            self._closed = True
            self._desk.close()
            self._runner.close()


def build(*, config: EngineConfig, runner: Spec) -> EngineCore:
    """An EngineCore, for ``Spec("mqlab.engine.engine_core:build", {"config": ..., "runner": Spec(...)})``.

    Raises:
        ConfigError, ModelError: whatever the runner refuses.
    """
    return EngineCore(runner.build(), config, MonotonicClock())
