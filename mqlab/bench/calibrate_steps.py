"""The steps that a calibration times: decodes, prompts, and both together, each as a plan of made-up tokens.

They cover what the scheduler makes of requests: batches that decode at one context, chunks of a prompt at its start and behind a
part that is in the cache already, several prompts in one step, and prompts beside decodes. A step that the model or its KV cache
cannot hold is left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mqlab.plan import Chunk, Plan
from mqlab.types import ModelInfo, SamplingParams

GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=1.0)

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (32, 256, 1024)
CHUNKS = (16, 64, 256, 1024)
BEHIND = 512
PROMPTS = ((4, 64), (16, 64), (4, 256))
MIXED = ((8, 256, 1, 64), (8, 256, 1, 256), (32, 64, 2, 256))


@dataclass(frozen=True)
class Part:
    """Sequences of a step that are alike: ``tokens`` each run now, behind ``start`` that are in the cache."""

    sequences: int
    tokens: int
    start: int

    @property
    def end(self) -> int:
        """Length of each sequence after the step."""
        return self.start + self.tokens

    def __str__(self) -> str:
        if self.tokens == 1:
            return f"{self.sequences} decode at {self.end}"
        prompts = "prompt" if self.sequences == 1 else "prompts"
        return f"{self.sequences} {prompts} of {self.tokens}" + (f" behind {self.start}" if self.start else "")


@dataclass(frozen=True)
class Step:
    """One step to time; every sequence of it yields a token."""

    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        """In words."""
        return ", ".join(map(str, self.parts))

    @property
    def tokens(self) -> int:
        """That run in it."""
        return sum(part.sequences * part.tokens for part in self.parts)

    @property
    def cached(self) -> int:
        """Tokens of all its sequences, once it has run."""
        return sum(part.sequences * part.end for part in self.parts)

    def blocks(self, block_size: int) -> int:
        """KV blocks that it needs."""
        return sum(part.sequences * -(-part.end // block_size) for part in self.parts)


def steps_for(info: ModelInfo, most_tokens: int) -> list[Step]:
    """The steps that fit, no two alike.

    Args:
        most_tokens: in the cache, over all sequences of a step.
    """
    room = min(info.max_model_len, info.max_prompt_len)

    def fits(step: Step) -> bool:
        longest = max(part.end for part in step.parts)
        return longest <= room and step.cached <= most_tokens and step.blocks(info.block_size) <= info.num_blocks

    return [step for step in dict.fromkeys(_all_steps(most_tokens)) if fits(step)]


def _all_steps(most_tokens: int) -> Iterator[Step]:
    for batch in BATCHES:
        longest = most_tokens // batch
        contexts = {*filter(lambda context: context <= longest, CONTEXTS), min(longest, CONTEXTS[-1])}
        yield from (Step((Part(batch, 1, context - 1),)) for context in sorted(contexts))
    for chunk in CHUNKS:
        yield from (Step((Part(1, chunk, start),)) for start in (0, BEHIND))
    yield from (Step((Part(number, length, 0),)) for number, length in PROMPTS)
    yield from (Step((Part(batch, 1, context - 1), Part(number, length, 0))) for batch, context, number, length in MIXED)


def plan_of(step: Step, info: ModelInfo, draw: random.Random) -> Plan:
    """A step as a plan, over the first blocks of the pool; half of its sequences are greedy, the others drawn from."""
    return _plan([part for part in step.parts for _ in range(part.sequences)], info, draw)


def filling(step: Step, info: ModelInfo, draw: random.Random, budget: int) -> Iterator[Plan]:
    """Plans that write every block of ``step``, at most ``budget`` tokens each.

    Memory that was never written reads from one page of zeros, faster than a cache that has something in it.
    """
    length = step.blocks(info.block_size) * info.block_size
    longest = min(budget, info.max_model_len) // info.block_size * info.block_size
    for begin in range(0, length, longest):
        tokens = min(longest, length - begin)
        yield _plan([Part(1, tokens, 0)], info, draw, begin // info.block_size)


def _plan(parts: Sequence[Part], info: ModelInfo, draw: random.Random, block: int = 0) -> Plan:
    chunks = []
    for number, part in enumerate(parts):
        end = block + -(-part.end // info.block_size)
        tokens = tuple(draw.randrange(info.vocab_size) for _ in range(part.tokens))
        params = DRAWN if number % 2 else GREEDY
        chunks.append(Chunk(f"s{number}", tokens, part.start, tuple(range(block, end)), samples=True, params=params, seed=number))
        block = end
    return Plan(tuple(chunks))
