"""Plans by hand, for tests that need a runner but no scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mqlab.plan import Chunk
from mqlab.types import SamplingParams

GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True)
class Line:
    """A sequence and the blocks it owns."""

    tokens: tuple[int, ...]
    blocks: tuple[int, ...]

    def chunk(self, start: int, end: int, samples: bool = True, block_size: int = 16) -> Chunk:
        """Tokens start … end - 1."""
        blocks = self.blocks[: -(-end // block_size)]
        return Chunk("line", self.tokens[start:end], start, blocks, samples, GREEDY, seed=0)


def lines(sequences: Iterable[Sequence[int]], pool: Sequence[int], block_size: int = 16) -> list[Line]:
    """Deal the blocks of ``pool`` out to the sequences, in the order of the pool."""
    blocks = iter(pool)
    return [Line(tuple(tokens), tuple(next(blocks) for _ in range(-(-len(tokens) // block_size)))) for tokens in sequences]
