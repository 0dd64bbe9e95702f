"""What a plan says of one sequence."""

from __future__ import annotations

from mqlab.engine.blocks import blocks_for
from mqlab.engine.dress import dressed
from mqlab.engine.sequence import Sequence
from mqlab.plan import UNKNOWN, Chunk

_IN_FLIGHT = (UNKNOWN,)


def decode(sequence: Sequence, block_size: int, rounds: int = 1, guesses: tuple[int, ...] = ()) -> Chunk:
    """The last token of a sequence, as often as ``rounds``, or once with ``guesses`` behind it. Takes the sequence that far.

    Made for every running sequence in every step: what it needs is worked out here rather than asked of properties.
    """
    tokens, owed, computed = sequence.tokens, sequence.owed, sequence.computed
    index = len(tokens) + owed - sequence.num_prompt
    bound = sequence.unbound - len(tokens) - owed
    advance = rounds + len(guesses)
    blocks = sequence.blocks
    if sequence.capacity - computed - advance >= block_size:
        blocks = blocks[: blocks_for(computed + advance, block_size)]
    chunk = Chunk(
        sequence.id,
        _IN_FLIGHT if owed else (tokens[-1], *guesses),
        computed,
        blocks,
        True,
        sequence.params,
        sequence.seed,
        index,
        sequence.ends if bound > 0 else (),
        rounds,
        bound if bound > 1 else 1,
        sequence.row if owed else None,
        len(guesses),
    )
    sequence.computed = computed + advance
    sequence.owed = owed + advance
    return chunk if sequence.plain else dressed(chunk, sequence)


def prompt(sequence: Sequence, count: int, block_size: int) -> Chunk:
    """The next ``count`` tokens of what is not computed yet, all of them known. Takes the sequence that far."""
    start, end = sequence.computed, sequence.computed + count
    samples = end == len(sequence.tokens) and sequence.draws
    chunk = Chunk(
        id=sequence.id,
        tokens=tuple(sequence.tokens[start:end]),
        start=start,
        blocks=sequence.blocks[: blocks_for(end, block_size)],
        samples=samples,
        params=sequence.params,
        seed=sequence.seed,
        output_index=sequence.num_output,
        banned=sequence.ends if len(sequence.tokens) < sequence.unbound else (),
        banned_rounds=max(1, sequence.unbound - len(sequence.tokens)),
    )
    sequence.computed = end
    sequence.owed += samples
    return chunk if sequence.plain else dressed(chunk, sequence)
