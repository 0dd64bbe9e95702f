"""The runner that computes: a model over a paged KV cache, and the sampler."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mqlab.model.attention import use_threads
from mqlab.model.batch import BatchTensors
from mqlab.model.forward import Forward
from mqlab.model.gain import Gain
from mqlab.model.kv import LayerCache
from mqlab.model.prompts import pooled_states, prompt_logprobs
from mqlab.model.sampler import Sampled, Sampler
from mqlab.plan import Plan, SampledTokens
from mqlab.types import ModelInfo


class TorchRunner:
    """Obeys Runner on a CPU.

    Args:
        info: what clients must know.
        model: weights and forward pass.
        allocate: gives the KV cache, one LayerCache a layer; called again after a rest.
        threads: torch and kernel threads of a step.
        logprobs_mode: of EngineConfig.

    Raises:
        ConfigError: the machine has not the memory for the cache.

    Attributes:
        sampler: makes tokens of logits; a probe may put a wrapper in its place between steps.
    """

    def __init__(
        self, info: ModelInfo, model: Forward, allocate: Callable[[], list[LayerCache]], threads: int, logprobs_mode: str = "raw_logprobs"
    ) -> None:
        self.info = info
        self._model: Forward | None = model
        self._allocate = allocate
        self._cache = allocate()
        self._threads = threads
        self._sampled = SampledTokens(())
        self.sampler: Callable[..., Sampled] = Sampler(logprobs_mode)

    def launch(self, plan: Plan) -> CpuFlight:
        """Start one step. The device is this CPU, so the work is done inside ``wait``."""
        return CpuFlight(self, plan)

    @torch.inference_mode()
    def run(self, plan: Plan) -> SampledTokens:
        """Do one step, after those that were launched before it: one round for every chunk, and more for those that decode on.

        Raises:
            RuntimeError: closed, or logits that are not finite.
        """
        model = self._model
        if model is None:
            raise RuntimeError("the runner is closed")
        use_threads(self._threads)
        plan = plan.resolved(self._sampled)
        gains = [Gain(chunk) for chunk in plan.sampling]
        batch = BatchTensors.of(plan, self.info.block_size)
        states = model.states(batch, self._cache)
        self._first_draws(model, gains, states[batch.logit_rows])
        rounds = plan.rounds
        for number in range(1, rounds):
            self._go_on(model, [gain for gain in gains if gain.goes_on(number)])
        self._sampled = SampledTokens(
            tokens=tuple([tuple(gain.tokens) for gain in gains]),
            rounds=rounds,
            logprobs=tuple([gain.logprobs for gain in gains]) if any(gain.logprobs for gain in gains) else None,
            prompts=prompt_logprobs(plan, states, model.logits),
            pooled=pooled_states(plan, states),
        )
        return self._sampled

    def _first_draws(self, model: Forward, gains: list[Gain], states: torch.Tensor) -> None:
        if not gains:
            return
        draws = [gain.draws() for gain in gains]
        sampled = self.sampler(model.logits(states), tuple([chunk for own in draws for chunk in own]))
        row = 0
        for gain, own in zip(gains, draws, strict=True):
            gain.verify(sampled, row)
            row += len(own)

    def _go_on(self, model: Forward, gains: list[Gain]) -> None:
        """One more round for those that decode on."""
        plan = Plan(tuple([gain.next() for gain in gains]))
        states = model.states(BatchTensors.of(plan, self.info.block_size), self._cache)
        sampled = self.sampler(model.logits(states), plan.chunks)
        for row, gain in enumerate(gains):
            gain.add(sampled.tokens[row], None if sampled.logprobs is None else sampled.logprobs[row])

    def check(self) -> None:
        """Nothing is needed but this process."""

    def rest(self) -> None:
        """Free the KV memory."""
        self._cache = []

    def resume(self) -> None:
        """Allocate it again.

        Raises:
            ConfigError: the machine has it no more.
        """
        self._cache = self._allocate()

    def close(self) -> None:
        """Free weights and KV memory."""
        self._model = None
        self._cache = []


class CpuFlight:
    """A step that is computed when waited for."""

    enqueued = False

    def __init__(self, runner: TorchRunner, plan: Plan) -> None:
        self._runner = runner
        self._plan = plan

    def wait(self) -> SampledTokens:
        """Compute and sample."""
        return self._runner.run(self._plan)
