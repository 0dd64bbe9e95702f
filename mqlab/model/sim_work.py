"""What the rounds of a plan ask of a device."""

from __future__ import annotations

from collections.abc import Sequence

from mqlab.model.cost import ModelCost, Work
from mqlab.plan import Chunk, Plan


def rounds_of(plan: Plan, cost: ModelCost) -> list[Work]:
    """The work of each round of a plan; after the first one, of those chunks that decode on."""
    chunks = plan.chunks
    works = [_first(chunks, cost)]
    number, going = 1, [chunk for chunk in chunks if chunk.rounds > 1]
    while going:
        context = sum([cost.seen(chunk.end + number) for chunk in going])
        works.append(Work(len(going), len(going), len(going), context, context))
        number += 1
        going = [chunk for chunk in going if chunk.rounds > number]
    return works


def _first(chunks: Sequence[Chunk], cost: ModelCost) -> Work:
    starts = [chunk.start for chunk in chunks if len(chunk.tokens) == 1 and chunk.samples]
    if len(starts) == len(chunks) and not cost.windows:
        # All decode, as in nearly every step, which is why it has a way of its own: each looks at what is behind it and at itself.
        context = sum(starts) + len(starts)
        return Work(len(starts), len(starts), len(starts), context, context)
    tokens = sum([len(chunk.tokens) for chunk in chunks])
    sampled = sum([chunk.samples + chunk.drafts for chunk in chunks])
    context = sum([cost.seen(chunk.end) for chunk in chunks])
    pairs = sum([_pairs(chunk, cost) for chunk in chunks])
    return Work(tokens, sampled, len(chunks), context, pairs)


def _pairs(chunk: Chunk, cost: ModelCost) -> float:
    """Of a token and one that it looks at: the mean context of the chunk's tokens, times their number."""
    return len(chunk.tokens) * (cost.seen(chunk.start + 1) + cost.seen(chunk.end)) / 2
