"""One request inside a core: its token ids, how far it is computed, its block table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mqlab.logprobs import Logprobs, join
from mqlab.types import Pooling, SamplingParams

if TYPE_CHECKING:
    import numpy as np

    from mqlab.engine.ngram import Ngrams

Key = tuple[int, str]
"""(client, id): what makes a live request unique in a core."""


class Guide(Protocol):
    """A grammar, at the place to which a text has come. It never raises: what goes wrong leaves an empty mask, which ends its request."""

    def mask(self) -> np.ndarray:
        """What may come next, uint32 [ceil(vocab / 32)]."""
        ...

    def take(self, token: int) -> None:
        """Go on with a token that the mask allowed."""
        ...

    @property
    def done(self) -> bool:
        """Whether its text has ended: it took an end token."""
        ...

    @property
    def error(self) -> str:
        """Why its mask is empty from now on; empty while all is well."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """A live request. The boundary between prompt and output never moves, whatever is recomputed.

    Attributes:
        id: the request's id, unique with ``client``.
        params: its sampling parameters.
        seed: resolved, in [0, 2**63).
        tokens: prompt and output ids together, in order.
        num_prompt: how many of them are prompt.
        max_new: new tokens at most: ``max_tokens``, context and KV pool all considered.
        eos: the model's end tokens.
        computed: tokens whose keys and values are in the KV cache once the steps in flight are done.
        blocks: physical blocks of the KV cache, in order of position.
        capacity: tokens that those hold.
        names: of its first full blocks, in the prefix cache.
        named: how many of its blocks have been given theirs.
        name_at: how many tokens give the next one its name.
        ended: gains nothing more: it has ended, or was aborted in flight and ends with the flight.
        flights: steps in flight that use its blocks.
        owed: new tokens that those will bring; ``Desk.settle`` takes off what they brought.
        row: its place among what the newest of them samples.
        ngrams: what its next tokens are guessed from; None where nothing is guessed.
        priority: the lowest goes first, where priorities count.
        rank: its place among those that wait or run: the lowest goes first. Unique.
        running: whether it holds blocks and a place among those that run.
        admitted: whether it ever did.
        salt: of the prefix cache.
        pooling: how its prompt is embedded; it generates nothing.
        mask: what it may ever draw, as ``Chunk.mask``; None allows all.
        guide: the grammar that its text follows, as far as it has come.
        scored: the last position of the prompt whose logprobs have been asked for.
        prompt_logprobs: those that have come, until they are handed out.
        pooled: the hidden states that have come, float32 [hidden].
        arrived_ns: when it was admitted; scheduled_ns: when it first got a place among those that run; first_ns: when its first new token
            came. -1 until then.
        cached: tokens of its prompt that were found in the prefix cache when it was first scheduled.
        preemptions: how often it lost its blocks to others.
        limit: tokens of prompt and output at most.
        unbound: tokens of prompt and output from which on it may end.
        ends: tokens that it must not draw before.
        stops: tokens that end it.
        steers: each draw needs the token before it on this side.
        waits: it is not planned ahead of a token that is in flight.
        whole: the hidden states of its whole prompt are wanted.
        plain: its chunks hold nothing but tokens and blocks; said by who schedules.
    """

    id: str
    client: int
    params: SamplingParams
    seed: int
    tokens: list[int]
    num_prompt: int
    max_new: int
    eos: tuple[int, ...] = ()
    computed: int = 0
    blocks: tuple[int, ...] = ()
    capacity: int = 0
    names: list[bytes] = field(default_factory=list)
    named: int = 0
    name_at: int = 0
    ended: bool = False
    flights: int = 0
    owed: int = 0
    row: int = 0
    ngrams: Ngrams | None = None
    priority: int = 0
    rank: tuple[int, int] = (0, 0)
    running: bool = False
    admitted: bool = False
    salt: str = ""
    pooling: Pooling | None = None
    mask: Any = None
    guide: Guide | None = None
    scored: int = 0
    prompt_logprobs: Logprobs | None = None
    pooled: np.ndarray | None = None
    arrived_ns: int = -1
    scheduled_ns: int = -1
    first_ns: int = -1
    cached: int = 0
    preemptions: int = 0
    # What every step asks of every sequence and never changes is worked out once.
    limit: int = field(init=False)
    unbound: int = field(init=False)
    ends: tuple[int, ...] = field(init=False)
    stops: frozenset[int] = field(init=False)
    steers: bool = field(init=False)
    waits: bool = field(init=False)
    whole: bool = field(init=False)
    plain: bool = True

    def __post_init__(self) -> None:
        params = self.params
        self.limit = self.num_prompt + self.max_new
        self.unbound = self.num_prompt + params.min_tokens
        self.ends = (*self.eos, *params.stop_token_ids)
        self.stops = frozenset(params.stop_token_ids if params.ignore_eos else self.ends)
        self.steers = self.waits = params.steers
        self.whole = params.prompt_logprobs is not None or (self.pooling is not None and self.pooling.kind != "last")

    @property
    def key(self) -> Key:
        """What it is found by."""
        return self.client, self.id

    @property
    def num_output(self) -> int:
        """New tokens so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def draws(self) -> bool:
        """Whether it generates at all; otherwise it ends with its prompt."""
        return self.max_new > 0

    @property
    def length(self) -> int:
        """Tokens of prompt and output, those in flight too."""
        return len(self.tokens) + self.owed

    @property
    def output_index(self) -> int:
        """Which new token the next draw gives, counted from 0."""
        return len(self.tokens) + self.owed - self.num_prompt

    @property
    def left(self) -> int:
        """Draws that are still to come at most."""
        return self.limit - len(self.tokens) - self.owed

    @property
    def pending(self) -> int:
        """Tokens still to run before the next one can be sampled: 1 when decoding, more when prefilling or recomputing."""
        return len(self.tokens) + self.owed - self.computed

    def note_scores(self, logprobs: Logprobs) -> None:
        """Prompt logprobs that follow those that have come."""
        self.prompt_logprobs = join(self.prompt_logprobs, logprobs)

    def note_state(self, state: np.ndarray) -> None:
        """The hidden states of one more chunk of the prompt."""
        assert self.pooling is not None
        if self.pooled is None or self.pooling.kind == "last":
            self.pooled = state
        elif self.pooling.kind == "mean":
            self.pooled = self.pooled + state
