"""What a step does on the device, from the copy of its numbers to its last draw."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mqlab.model.accel.accelerator import Accelerator
from mqlab.model.accel.buffers import Batch, StepBuffers
from mqlab.model.accel.decoder import DeviceDecoder
from mqlab.model.accel.flight import Landing, Pending
from mqlab.model.accel.following import StepSampler
from mqlab.model.accel.graphs import Graphs
from mqlab.model.gain import Gain
from mqlab.model.kv import Pool
from mqlab.model.prompts import pooled_states, prompt_logprobs
from mqlab.plan import Plan

DrawTokens = Callable[[Tensor, Any], Tensor]


class Steps:
    """Runs steps over one KV cache. All is called within the accelerator's ``active``, in inference mode.

    Args:
        decoder: weights and forward pass.
        cache: one Pool a layer.
        buffers: a step's inputs.
        graphs: of decodes over this cache.
        sampler: draws.
    """

    def __init__(self, decoder: DeviceDecoder, cache: list[Pool], buffers: StepBuffers, graphs: Graphs, sampler: StepSampler) -> None:
        self._decoder = decoder
        self._cache = cache
        self._buffers = buffers
        self._graphs = graphs
        self._sampler = sampler

    def landing(self, accelerator: Accelerator) -> Landing:
        """A place for what a step samples."""
        return Landing(accelerator, self._buffers.limits.tokens)

    def begin(self, plan: Plan, landing: Landing) -> Pending:
        """Enqueue the first round's forward pass, and make its draws ready."""
        landing.started.record()
        step = self._forward(plan, landing)
        if step.gains:
            step.draw = self._sampler.prepare(tuple([chunk for gain in step.gains for chunk in gain.draws()]))
        step.by_host = step.wants_states or not step.repeats_itself or not (step.draw is None or step.draw.on_device)
        return step

    def finish(self, step: Pending, draw: DrawTokens) -> None:
        """Enqueue the draws of all rounds, and what else is wanted; waits for the device only where ``step.by_host``.

        Args:
            draw: of the sampler.
        """
        if step.wants_states and step.states is not None:
            step.prompts = prompt_logprobs(step.plan, step.states, self._decoder.logits)
            step.pooled = pooled_states(step.plan, step.states)
        step.states = None
        logits, step.logits = step.logits, None
        if logits is not None:
            (self._draw if step.repeats_itself else self._draw_by_plans)(step, logits, draw)
        step.landing.ended.record()

    def note_last(self, tokens: list[int]) -> None:
        """Say which tokens the next plan's chunks may follow."""
        self._buffers.last[: len(tokens)].copy_(torch.tensor(tokens))

    def _forward(self, plan: Plan, landing: Landing) -> Pending:
        gains = [Gain(chunk) for chunk in plan.sampling]
        size = self._graphs.size_for(plan)
        if size is not None:
            self._buffers.load(plan, size)
            again = partial(self._graphs.run, size)
            return Pending(plan, landing, gains, again, logits=again())
        batch = self._buffers.load(plan)
        states = self._decoder.states(batch, self._cache)
        logits = self._logits(batch, states) if gains else None
        return Pending(plan, landing, gains, partial(self._run, batch), states, logits)

    def _run(self, batch: Batch) -> Tensor:
        return self._logits(batch, self._decoder.states(batch, self._cache))

    def _logits(self, batch: Batch, states: Tensor) -> Tensor:
        rows = batch.logit_rows
        return self._decoder.logits(states if rows is None else states.index_select(0, rows))

    def _draw(self, step: Pending, logits: Tensor, draw: DrawTokens) -> None:
        """Round after round without the host."""
        step.tokens = step.landing.room(step.plan.rounds, step.rows)
        drawing = step.draw
        for number, arriving in enumerate(step.tokens):
            if number:
                logits, drawing = self._next_round(step, number), self._sampler.next_round(drawing, counted=True)
            tokens = self._decoder.group.share(draw(logits, drawing))
            arriving.copy_(tokens, non_blocking=True)
            step.draws.append(drawing)
            self._keep_last(step, number, tokens)

    def _next_round(self, step: Pending, number: int) -> Tensor:
        """The inputs of the round before become those of the next one. Returns its logits."""
        count, own = step.rows, self._buffers.device
        if step.ends_before(number):
            ended = own.rounds[:count] <= number
            own.slots[:count].masked_fill_(ended, -1)
            own.contexts[:count].masked_fill_(ended, 0)
        self._decoder.backend.advance(
            self._buffers.last[:count],
            own.tokens[:count],
            own.positions[:count],
            own.slots[:count],
            own.contexts[:count],
            self._sampler.indices[:count],
            self._buffers.tables[:count],
            self._buffers.limits.block_size,
        )
        assert step.again is not None, "it is not answered yet"
        return step.again()

    def _keep_last(self, step: Pending, number: int, tokens: Tensor) -> None:
        """For the round, or the plan, to come; of rows that have ended stays what they drew last."""
        last, own = self._buffers.last[: len(tokens)], self._buffers.device
        if number and step.ends_before(number):
            tokens = torch.where(own.rounds[: len(tokens)] > number, tokens, last)
        last.copy_(tokens)

    def _draw_by_plans(self, step: Pending, logits: Tensor, draw: DrawTokens) -> None:
        """Each round a plan of those that go on, made of what the host was told. The scheduler makes no such plans."""
        step.take_first(self._drawn(logits, step.draw, draw))
        for number in range(1, step.plan.rounds):
            rows = [row for row, gain in enumerate(step.gains) if gain.goes_on(number)]
            plan = Plan(tuple([step.gains[row].next() for row in rows]))
            logits = self._run(self._buffers.load(plan))
            step.take_more(number, self._drawn(logits, self._sampler.prepare(plan.chunks), draw), rows)
        self.note_last([gain.tokens[-1] for gain in step.gains])

    def _drawn(self, logits: Tensor, drawing: Any, draw: DrawTokens) -> Any:
        return self._sampler.finish(drawing, self._decoder.group.share(draw(logits, drawing)).tolist())
