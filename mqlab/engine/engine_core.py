"""The engine: a scheduler over KV blocks, and a runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from mqlab.clock import Clock, MonotonicClock
from mqlab.config import EngineConfig
from mqlab.engine.grammar import Grammars
from mqlab.engine.lifecycle import LoadableCore
from mqlab.engine.scheduler import Scheduler
from mqlab.engine.sequence import Sequence
from mqlab.engine.takeoff import Landed
from mqlab.errors import ConfigError
from mqlab.models.echoed import is_echo
from mqlab.plan import InFlight, Runner, SampledTokens
from mqlab.types import ModelInfo
from mqlab.wire.spec import Spec


class EngineCore(LoadableCore[EngineConfig]):
    """Obeys the Core contract with a real scheduler. What a runner raises is fatal and passes through.

    Args:
        runner: its ``info`` gives the pool, the context and the end tokens.
        config: limits and policies.
        clock: stamps the statistics.
        runners: what makes a runner for another model, of its ``config``; without it this core serves the one that it has.
        finder: called with a ``config`` before the model that is loaded goes; raises ModelError or ConfigError where ``runners`` would.

    Attributes:
        runner: what computes, None while nothing is loaded; a probe may put a wrapper in its place between steps.
    """

    def __init__(self, runner: Runner, config: EngineConfig, clock: Clock, runners: Spec | None = None, finder: Spec | None = None) -> None:
        self.runner: Runner | None = runner
        self._runners = runners
        self._finder = finder
        super().__init__(config, runner.info, clock)
        self.calls["reset_prefix_cache"] = self._reset_prefix_cache

    def check(self) -> None:
        """See that the runner is well; what it raises is fatal."""
        if self.runner is not None:
            self.runner.check()

    def _serve(self, info: ModelInfo, setup: EngineConfig) -> None:
        self._scheduler = scheduler = Scheduler(info.num_blocks if info.state == "ready" else 0, info.block_size, setup, self._clock)
        depth = 2 if setup.async_scheduling else 1
        self._desk.serve(
            info,
            setup.seed,
            scheduler.remove,
            scheduler.gauges,
            depth,
            setup.multi_step_stream_outputs,
            setup.max_logprobs,
            Grammars(info),
        )

    def _reset_prefix_cache(self) -> bool:
        self._scheduler.forget_prefixes()
        return True

    def _queue(self, sequence: Sequence) -> None:
        self._scheduler.add(sequence)

    def _launch(self) -> InFlight | None:
        assert self.runner is not None, "a model that is not loaded has no requests"
        plan = self._scheduler.schedule()
        return None if plan is None else self.runner.launch(plan)

    def _land(self, sampled: SampledTokens) -> Landed:
        return self._scheduler.land(sampled)

    def _changed(self, setup: EngineConfig, model: str, options: Mapping[str, Any]) -> EngineConfig:
        known = {field.name for field in fields(EngineConfig)} - {"model"}
        if is_echo(model):
            raise ConfigError(f"load cannot put {model!r}, an engine without a model, in the place of one; serve it by itself")
        if unknown := sorted(options.keys() - known):
            raise ConfigError(f"load does not take {', '.join(unknown)}; it takes {', '.join(sorted(known))}")
        return replace(setup, **{"served_model_name": None, **options, "model": model})

    def _find(self, setup: EngineConfig) -> None:
        if self._runners is None:
            raise ConfigError("this engine was made around its runner, and has no way to make another")
        if self._finder is not None:
            self._finder.build(setup)

    def _open(self, setup: EngineConfig) -> ModelInfo:
        if self._runners is None:
            raise ConfigError("this engine was made around its runner, which sleep(2) has closed")
        self.runner = runner = replace(self._runners, kwargs={**self._runners.kwargs, "config": setup}).build()
        return runner.info

    def _rest(self) -> None:
        assert self.runner is not None, "it was ready"
        self.runner.rest()

    def _resume(self) -> None:
        assert self.runner is not None, "it rests"
        self.runner.resume()

    def _shut(self) -> None:
        runner, self.runner = self.runner, None
        if runner is not None:
            runner.close()


def build(*, config: EngineConfig, runner: Spec, finder: Spec | None = None) -> EngineCore:
    """An EngineCore, for ``Spec("mqlab.engine.engine_core:build", {"config": ..., "runner": Spec(...)})``.

    Args:
        runner: takes a ``config``, which a load puts another one in the place of.
        finder: see EngineCore.

    Raises:
        ConfigError, ModelError: whatever the runner refuses.
    """
    return EngineCore(runner.build(), config, MonotonicClock(), runner, finder)
