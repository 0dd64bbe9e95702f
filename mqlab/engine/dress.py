"""What a chunk carries beyond tokens and blocks, for the requests that ask for more than plain sampling."""

from __future__ import annotations

import msgspec

from mqlab.engine.sequence import Sequence
from mqlab.plan import Chunk, Scored


def is_plain(sequence: Sequence) -> bool:
    """Whether the sequence's chunks hold nothing but tokens and blocks."""
    params = sequence.params
    return sequence.mask is None and sequence.pooling is None and params.prompt_logprobs is None and not params.steers


def dressed(chunk: Chunk, sequence: Sequence) -> Chunk:
    """The chunk with what its sequence asks for. Marks the prompt positions as scored that it will score."""
    params = sequence.params
    return msgspec.structs.replace(
        chunk,
        banned=(*chunk.banned, *_completions(sequence)) if chunk.samples else (),
        history=sequence.tokens if params.penalised else (),
        num_prompt=sequence.num_prompt,
        mask=_mask(sequence) if chunk.samples else None,
        scored=None if params.prompt_logprobs is None else _scored(chunk, sequence),
        pooling=None if sequence.pooling is None else _pooling(chunk, sequence),
    )


def _mask(sequence: Sequence) -> object:
    if sequence.guide is None:
        return sequence.mask
    mask = sequence.guide.mask()
    return mask if sequence.mask is None else mask & sequence.mask


def _completions(sequence: Sequence) -> list[int]:
    """The tokens that would complete a bad word of several; those of one are masked for good."""
    tokens, count = sequence.tokens, sequence.num_output
    return [ids[-1] for ids in sequence.params.bad_word_ids if 1 < len(ids) <= count + 1 and tuple(tokens[1 - len(ids) :]) == ids[:-1]]


def _scored(chunk: Chunk, sequence: Sequence) -> Scored | None:
    first, last = max(chunk.start, sequence.scored) + 1, min(chunk.end, sequence.num_prompt - 1)
    if first > last:
        return None
    sequence.scored = last
    return Scored(first - 1 - chunk.start, tuple(sequence.tokens[first : last + 1]))


def _pooling(chunk: Chunk, sequence: Sequence) -> str | None:
    assert sequence.pooling is not None
    wanted = {"mean": True, "last": chunk.end == sequence.num_prompt, "cls": chunk.start == 0}
    return sequence.pooling.kind if wanted[sequence.pooling.kind] else None
