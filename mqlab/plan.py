"""What crosses from the scheduler to a runner and back. Immutable; numbers only, so engine/ stays free of torch and model/ of policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from mqlab.logprobs import Logprobs
from mqlab.types import ModelInfo, SamplingParams

if TYPE_CHECKING:
    import numpy as np

UNKNOWN = -1
"""Stands for a token that is still on the device."""


class Scored(msgspec.Struct, frozen=True, gc=False):
    """Prompt logprobs that are wanted of a chunk: its row ``row + i`` predicts ``targets[i]``; ``params.prompt_logprobs`` says how many."""

    row: int
    targets: tuple[int, ...]


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """One sequence's share of a plan. (A msgspec struct, for one is made for each sequence and step: 0.2 µs, a frozen dataclass 1.5.)

    Attributes:
        id: the request.
        tokens: token ids to run in this step, at least one; ``(UNKNOWN,)`` where ``follows`` says which it is.
        start: position of the first of them = tokens already in the KV cache.
        blocks: physical block ids that cover positions 0 … start + len(tokens) + rounds - 2, in order.
        samples: whether the last token's logits yield a new token (False while a prompt is only partly prefilled).
        params: the request's sampling parameters.
        seed: the request's resolved seed, in [0, 2**63).
        output_index: how many tokens the request has generated so far; (seed, output_index) determines the draw.
        banned: token ids masked for this draw (end and stop tokens below ``min_tokens``, the last ids of bad words).
        rounds: how often it runs in this plan: a decoding chunk of a multi-step plan runs again on the token that it gave.
        banned_rounds: in how many of them ``banned`` holds.
        follows: of a plan made while the one before it runs: the row of that one's ``sampling`` whose last token is the one to run.
        drafts: how many of its last tokens are guesses: the chunk yields one token more than were right.
        history: all token ids of the request so far, the first ``num_prompt`` of them its prompt; only where penalties ask.
        mask: uint32 [ceil(vocab / 32)], bit i % 32 of word i // 32 set where token i may be drawn; None allows all.
        scored: prompt logprobs that are wanted.
        pooling: what is wanted of its final hidden states: their sum, the last one or the first one.
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
    drafts: int = 0
    history: Sequence[int] = ()
    num_prompt: int = 0
    mask: Any = None
    scored: Scored | None = None
    pooling: Literal["mean", "last", "cls"] | None = None

    def resolved(self, before: SampledTokens) -> Chunk:
        """The same with its token filled in from what the plan launched before gave."""
        if self.follows is None:
            return self
        return msgspec.structs.replace(self, tokens=before.tokens[self.follows][-1:], follows=None)

    def after(self, tokens: Sequence[int]) -> Chunk:
        """What it runs in the round after those that gave ``tokens``, at least one."""
        done = len(tokens)
        return msgspec.structs.replace(
            self,
            tokens=(tokens[-1],),
            start=self.end + done - 1,
            output_index=self.output_index + done,
            banned=self.banned if done < self.banned_rounds else (),
            rounds=self.rounds - done,
            banned_rounds=self.banned_rounds - done,
            follows=None,
        )

    def guess(self, number: int) -> Chunk:
        """The draw after ``number`` of its drafts, as a chunk of one token."""
        last = len(self.tokens) - self.drafts + number
        return msgspec.structs.replace(
            self,
            tokens=self.tokens[last - 1 : last],
            start=self.start + last - 1,
            output_index=self.output_index + number,
            banned=self.banned if number < self.banned_rounds else (),
            drafts=0,
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
        return tuple([chunk for chunk in self.chunks if chunk.samples])

    def resolved(self, before: SampledTokens) -> Plan:
        """The same with its unknown tokens filled in from what the plan launched before gave."""
        return Plan(tuple([chunk.resolved(before) for chunk in self.chunks]))

    @property
    def rounds(self) -> int:
        """How often the device runs for it: more than once in multi-step scheduling (vLLM 0.6, ``num_scheduler_steps``)."""
        return max([chunk.rounds for chunk in self.chunks])


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What a plan gave.

    Attributes:
        tokens: for each chunk of ``plan.sampling``, in that order, its token ids: one a round, or those that its drafts led to.
        rounds: of the plan.
        logprobs: for each chunk of ``plan.sampling``, of its tokens, where asked for; None where nobody asked.
        prompts: the prompt logprobs of the chunks that are ``scored``, by row in ``plan.chunks``.
        pooled: float32 [hidden] of the chunks with ``pooling``, by row in ``plan.chunks``.
        device_ns: that the device was busy with it, and oversleep_ns: that the wait for it was too long; 0 where nobody knows.
    """

    tokens: tuple[tuple[int, ...], ...]
    rounds: int = 1
    logprobs: tuple[Logprobs | None, ...] | None = None
    prompts: Mapping[int, Logprobs] = field(default_factory=dict)
    pooled: Mapping[int, np.ndarray] = field(default_factory=dict)
    device_ns: int = 0
    oversleep_ns: int = 0

    @property
    def count(self) -> int:
        """Tokens of all chunks."""
        return sum(map(len, self.tokens))


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

    Plans run in the order of launches, and within a plan, layer by layer, the keys and values of all chunks are written before any chunk
    reads: a chunk may attend to blocks that another one of the same plan fills (a prompt's choices share its blocks from the first
    step on).
    """

    info: ModelInfo

    def launch(self, plan: Plan) -> InFlight:
        """Start one step."""
        ...

    def check(self) -> None:
        """See that all that a step needs is there: the processes that share the model, where there are several.

        Raises:
            RankDied: one is gone.
        """
        ...

    def rest(self) -> None:
        """Free the KV memory, whose contents are lost, and keep the weights. With no plan in flight."""
        ...

    def resume(self) -> None:
        """Allocate the KV memory again.

        Raises:
            ConfigError: the machine has it no more; the runner goes on resting.
        """
        ...

    def close(self) -> None:
        """Free weights and KV memory, also with a plan in flight: nobody waits for it any more."""
        ...
