"""What a runner tells the probe of its core's steps: when it launches, and how long its sampler takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from mqlab.plan import InFlight, Plan, Runner
from mqlab.types import ModelInfo

_LAUNCHED = 16


class Parts:
    """What the runner's wrappers tell. A core may launch a step while another is in flight, or several rounds as one step.

    Attributes:
        flying: plans that were launched and have not landed, oldest first; none where no runner tells.
        launched: those of them that were launched since the last step.
        launch_ns: in launches since the last step; sample_ns: in the sampler since then.
    """

    def __init__(self) -> None:
        # Bounded: a probe that was dropped takes nothing out any more.
        self.flying: deque[Plan] = deque(maxlen=_LAUNCHED)
        self.launched: deque[Plan] = deque(maxlen=_LAUNCHED)
        self.launch_ns = self.sample_ns = 0


class MeteredRunner:
    """Times ``launch`` of the runner inside."""

    def __init__(self, runner: Runner, parts: Parts) -> None:
        self._runner = runner
        self._parts = parts
        self.info: ModelInfo = runner.info

    def launch(self, plan: Plan) -> InFlight:
        """Start one step."""
        begin = monotonic_ns()
        flight = self._runner.launch(plan)
        parts = self._parts
        parts.launch_ns += monotonic_ns() - begin
        parts.flying.append(plan)
        parts.launched.append(plan)
        return flight

    def check(self) -> None:
        """See that the runner inside is well."""
        self._runner.check()

    def rest(self) -> None:
        """Free the KV memory of the runner inside."""
        self._runner.rest()

    def resume(self) -> None:
        """Allocate it again."""
        self._runner.resume()

    def close(self) -> None:
        """Close the runner inside."""
        self._runner.close()


def meter_runner(core: Any, parts: Parts) -> None:
    """Time the runner and the sampler of a core, where it has any; while nothing is in flight. Once for each runner that it has."""
    parts.flying.clear()  # what was launched, and dropped when the model went
    parts.launched.clear()
    runner = getattr(core, "runner", None)
    if runner is None or isinstance(runner, MeteredRunner):
        return
    if hasattr(runner, "sampler"):
        runner.sampler = _timed(runner.sampler, parts)
    core.runner = MeteredRunner(runner, parts)


def _timed(sampler: Callable[..., tuple[int, ...]], parts: Parts) -> Callable[..., tuple[int, ...]]:
    def sample(*args: Any) -> tuple[int, ...]:
        begin = monotonic_ns()
        tokens = sampler(*args)
        parts.sample_ns += monotonic_ns() - begin
        return tokens

    return sample
