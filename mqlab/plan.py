"""What crosses from the scheduler to a runner and back. Immutable; numbers only, so engine/ stays free of torch and model/ of policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mqlab.types import ModelInfo, SamplingParams

UNKNOWN = -1
"""Stands for a token that is still on the device."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's share of a plan.

    Attributes:
        id: the request.
        tokens: token ids to run in this step, at least one; ``(UNKNOWN,)`` where ``follows`` says which it is.
        start: position of the first of them = tokens already in the KV cache.
        blocks: physical block ids that cover positions 0 … start + len(tokens) + rounds - 2, in order.
        samples: whether the last token's logits yield a new token (False while a prompt is only partly prefilled).
        params: the request's sampling parameters.
        seed: the request's resolved seed, in [0, 2**63).
        output_index: how many tokens the request has generated so far; (seed, output_index) determines the draw.
        banned: token ids masked for this draw (end and stop tokens below ``min_tokens``).
        rounds: how often it runs in this plan: a decoding chunk of a multi-step plan runs again on the token that it gave.
        banned_rounds: in how many of them ``banned`` holds.
        follows: of a plan made while the one before it runs: the row of that one's ``sampling`` whose last token is the one to run.
    """

    id: str
    tokens: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]
    samples: bool
    params: SamplingParams
    seed: int
    output_index: int = 0
    banned: tuple[int, ...] = ()
    rounds: int = 1
    banned_rounds: int = 1
    follows: int | None = None

    def resolved(self, before: SampledTokens) -> Chunk:
        """The same with its token filled in from what the plan launched before gave."""
        return self if self.follows is None else replace(self, tokens=before.tokens[self.follows][-1:], follows=None)

    def after(self, tokens: Sequence[int]) -> Chunk:
        """What it runs in the round after those that gave ``tokens``, at least one."""
        done = len(tokens)
        return replace(
            self,
            tokens=(tokens[-1],),
            start=self.end + done - 1,
            output_index=self.output_index + done,
            banned=self.banned if done < self.banned_rounds else (),
            rounds=self.rounds - done,
            banned_rounds=self.banned_rounds - done,
        )

    @property
    def end(self) -> int:
        """Length of the sequence in the KV cache after this step."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """One scheduled step: prefill and decode chunks together, decodes first."""

    chunks: tuple[Chunk, ...]

    @property
    def sampling(self) -> tuple[Chunk, ...]:
        """The chunks that yield a token, in the order of ``SampledTokens``."""
        return tuple(chunk for chunk in self.chunks if chunk.samples)

    def resolved(self, before: SampledTokens) -> Plan:
        """The same with its unknown tokens filled in from what the plan launched before gave."""
        return Plan(tuple(chunk.resolved(before) for chunk in self.chunks))

    @property
    def rounds(self) -> int:
        """How often the device runs for it: more than once in multi-step scheduling (vLLM 0.6, ``num_scheduler_steps``)."""
        return max(chunk.rounds for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """For each chunk of ``plan.sampling``, in that order, its ``rounds`` token ids.

    Attributes:
        rounds: of the plan; 1 says that each chunk has one token.
    """

    tokens: tuple[tuple[int, ...], ...]
    rounds: int = 1

    @property
    def count(self) -> int:
        """Tokens of all chunks."""
        return len(self.tokens) if self.rounds == 1 else sum(map(len, self.tokens))


class InFlight(Protocol):
    """A launched step."""

    def wait(self) -> SampledTokens:
        """Block until the device is done. Called once, in the order of launches. May run in another thread than launch."""
        ...


class Runner(Protocol):
    """Turns one scheduled batch into sampled tokens. Owns weights and KV memory.

    ``launch`` enqueues a plan on the device and returns at once; on a CPU the work may be done inside ``wait``. A second plan may come
    while the first is in flight, with ``follows`` for the tokens that only the first will give: a GPU gathers them, by row, from the
    sampled tokens that the last launch leaves in its memory; who computes inside ``wait`` knows them by then.
    """

    info: ModelInfo

    def launch(self, plan: Plan) -> InFlight:
        """Start one step."""
        ...

    def close(self) -> None:
        """Free weights and KV memory, also with a plan in flight: nobody waits for it any more."""
        ...
