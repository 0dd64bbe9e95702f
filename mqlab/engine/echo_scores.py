"""Logprobs of the echo core: a made-up distribution, the same wherever it is asked."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from mqlab.engine.sequence import Sequence
from mqlab.logprobs import Logprobs, made_up


def output_logprobs(drew: Seq[Sequence], tokens: Seq[tuple[int, ...]], vocab_size: int) -> tuple[Logprobs | None, ...] | None:
    """As ``SampledTokens.logprobs`` has them."""
    wanted = [sequence.params.logprobs for sequence in drew]
    if all(count is None for count in wanted):
        return None
    return tuple([None if count is None else made_up(own, count, vocab_size) for own, count in zip(tokens, wanted, strict=True)])


def prompt_logprobs(flown: Seq[Sequence], vocab_size: int) -> dict[int, Logprobs]:
    """As ``SampledTokens.prompts`` has them, of the sequences that have given nothing yet."""
    scored: dict[int, Logprobs] = {}
    for row, sequence in enumerate(flown):
        count = sequence.params.prompt_logprobs
        if count is not None and not sequence.output_index and sequence.num_prompt > 1:
            scored[row] = made_up(sequence.tokens[1 : sequence.num_prompt], count, vocab_size)
    return scored
