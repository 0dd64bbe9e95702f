"""What crosses from the scheduler to a runner and back. Immutable; numbers only, so engine/ stays free of torch and model/ of policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mqlab.types import ModelInfo, SamplingParams


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's share of a plan.

    Attributes:
        id: the request.
        tokens: token ids to run in this step, at least one.
        start: position of the first of them = tokens already in the KV cache.
        blocks: physical block ids that cover positions 0 … start + len(tokens) - 1, in order.
        samples: whether the last token's logits yield a new token (False while a prompt is only partly prefilled).
        params: the request's sampling parameters.
        seed: the request's resolved seed, in [0, 2**63).
        output_index: how many tokens the request has generated so far; (seed, output_index) determines the draw.
        banned: token ids masked for this draw (end and stop tokens below ``min_tokens``).
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


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token id for each chunk of ``plan.sampling``, in that order."""

    tokens: tuple[int, ...]


class InFlight(Protocol):
    """A launched step."""

    def wait(self) -> SampledTokens:
        """Block until the device is done. Called once. May run in another thread than launch."""
        ...


class Runner(Protocol):
    """Turns one scheduled batch into sampled tokens. Owns weights and KV memory.

    ``launch`` enqueues a plan on the device and returns at once; on a CPU the work may be done inside ``wait``.
    """

    info: ModelInfo

    def launch(self, plan: Plan) -> InFlight:
        """Start one step."""
        ...

    def close(self) -> None:
        """Free weights and KV memory."""
        ...
