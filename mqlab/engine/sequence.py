"""One request inside a core: its token ids, how far it is computed, its block table."""

from __future__ import annotations

from dataclasses import dataclass

from mqlab.types import SamplingParams

Key = tuple[int, str]
"""(client, id): what makes a live request unique in a core."""


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
        computed: tokens whose keys and values are in the KV cache once the steps in flight are done.
        blocks: physical blocks of the KV cache, in order of position.
        ended: gains nothing more: it has ended, or was aborted in flight and ends with the flight.
        flights: steps in flight that use its blocks.
        owed: new tokens that those will bring; ``Desk.settle`` takes off what they brought.
        row: its place among what the newest of them samples.
    """

    id: str
    client: int
    params: SamplingParams
    seed: int
    tokens: list[int]
    num_prompt: int
    max_new: int
    computed: int = 0
    blocks: tuple[int, ...] = ()
    ended: bool = False
    flights: int = 0
    owed: int = 0
    row: int = 0

    @property
    def key(self) -> Key:
        """What it is found by."""
        return self.client, self.id

    @property
    def num_output(self) -> int:
        """New tokens so far."""
        return len(self.tokens) - self.num_prompt

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
        return self.num_prompt + self.max_new - len(self.tokens) - self.owed

    @property
    def pending(self) -> int:
        """Tokens still to run before the next one can be sampled: 1 when decoding, more when prefilling or recomputing."""
        return len(self.tokens) + self.owed - self.computed

    def banned(self, eos: tuple[int, ...]) -> tuple[int, ...]:
        """Token ids that the next draw must not give: end and stop ids, below ``min_tokens`` (``ignore_eos`` or not, as in vLLM)."""
        return (*eos, *self.params.stop_token_ids) if self.output_index < self.params.min_tokens else ()
