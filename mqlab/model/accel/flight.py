"""A step between its launch and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mqlab.logprobs import Logprobs
from mqlab.model.accel.accelerator import Accelerator, Event
from mqlab.model.gain import Gain
from mqlab.model.sampler import Sampled
from mqlab.plan import Plan, SampledTokens


class Landing:
    """Pinned memory for what a step samples, and the events around the step. Used by one flight after the other.

    Args:
        accelerator: the device.
        room: tokens that most steps sample at most.

    Attributes:
        started, ended: passed when the device begins with the step, and when its tokens are there.
    """

    def __init__(self, accelerator: Accelerator, room: int) -> None:
        self._accelerator = accelerator
        self._tokens = accelerator.pinned(room, torch.int64)
        self.started = accelerator.event()
        self.ended: Event = accelerator.event()

    def room(self, rounds: int, rows: int) -> Tensor:
        """[rounds, rows] int64."""
        if rounds * rows > len(self._tokens):  # which may make a GPU wait
            self._tokens = self._accelerator.pinned(rounds * rows, torch.int64)
        return self._tokens[: rounds * rows].view(rounds, rows)


@dataclass
class Pending:
    """A step in flight.

    Attributes:
        plan: that it runs.
        landing: where its tokens arrive.
        gains: what its sampling chunks gain.
        states: [T, hidden] of its first round, of a step that no graph runs.
        logits: [R or more, vocab] float32 of its first round; None where nothing is sampled.
        again: runs one more round on what the step's buffers then say, and gives its logits.
        draw: of its first round.
        draws: of all rounds whose tokens arrive in ``tokens`` [rounds, R].
        prompts, pooled: as SampledTokens has them.
        by_host: a part of it waits for the host.
        answer: what it gave, once somebody has waited for it.
    """

    plan: Plan
    landing: Landing
    gains: list[Gain]
    again: Callable[[], Tensor] | None
    states: Tensor | None = None
    logits: Tensor | None = None
    draw: Any = None
    draws: list[Any] = field(default_factory=list)
    tokens: Tensor | None = None
    prompts: Mapping[int, Logprobs] = field(default_factory=dict)
    pooled: Mapping[int, np.ndarray] = field(default_factory=dict)
    by_host: bool = False
    answer: SampledTokens | None = None

    @cached_property
    def rows(self) -> int:
        """Draws of a round: one a sampling chunk, and one for each draft."""
        return len(self.gains) + sum([chunk.drafts for chunk in self.plan.chunks])

    @cached_property
    def wants_states(self) -> bool:
        """Whether a chunk asks for more of its hidden states than tokens."""
        return any(chunk.scored is not None or chunk.pooling is not None for chunk in self.plan.chunks)

    @cached_property
    def repeats_itself(self) -> bool:
        """Whether each round is the one before with other numbers, which the device can move on by itself."""
        plan = self.plan
        return plan.rounds == 1 or all(chunk.samples and len(chunk.tokens) == 1 for chunk in plan.chunks)

    def ends_before(self, number: int) -> bool:
        """Whether a row has run all its rounds before round ``number``."""
        return any(chunk.rounds <= number for chunk in self.plan.sampling)

    def take_first(self, sampled: Sampled) -> None:
        """What the first round drew."""
        row = 0
        for gain, chunk in zip(self.gains, self.plan.sampling, strict=True):
            gain.verify(sampled, row)
            row += chunk.drafts + 1

    def take_more(self, number: int, sampled: Sampled, rows: list[int] | None = None) -> None:
        """What round ``number`` drew, by row of ``gains``, or for those ``rows`` alone."""
        for place, row in enumerate(range(len(self.gains)) if rows is None else rows):
            if self.gains[row].goes_on(number):
                self.gains[row].add(sampled.tokens[place], None if sampled.logprobs is None else sampled.logprobs[place])

    def answered(self, finish: Callable[[Any, list[int]], Sampled]) -> SampledTokens:
        """All that it gave; its end has been passed.

        Args:
            finish: of a sampler.
        """
        drawn = [] if self.tokens is None else [finish(*one) for one in zip(self.draws, self.tokens.tolist(), strict=True)]
        tokens, logprobs = self._gained(drawn)
        return SampledTokens(
            tokens=tokens,
            rounds=self.plan.rounds,
            logprobs=logprobs,
            prompts=self.prompts,
            pooled=self.pooled,
            device_ns=0 if self.by_host else self.landing.ended.ns_since(self.landing.started),
        )

    def let_go(self) -> None:
        """Keep the answer alone. Whoever holds a flight would hold graphs and cache with it, also while they are to be freed."""
        self.again, self.draw, self.draws, self.tokens, self.states, self.logits = None, None, [], None, None, None

    def _gained(self, drawn: list[Sampled]) -> tuple[tuple[tuple[int, ...], ...], tuple[Logprobs | None, ...] | None]:
        """Tokens and logprobs of each sampling chunk, from those of each round that are not taken yet."""
        if len(drawn) == 1 and self.rows == len(self.gains):  # most steps: nothing is to be joined
            return tuple([(token,) for token in drawn[0].tokens]), drawn[0].logprobs
        for number, sampled in enumerate(drawn):
            self.take_first(sampled) if number == 0 else self.take_more(number, sampled)
        logprobs = tuple([gain.logprobs for gain in self.gains])
        return tuple([tuple(gain.tokens) for gain in self.gains]), logprobs if any(logprobs) else None
