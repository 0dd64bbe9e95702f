"""Logprobs of the echo core: a made-up distribution, the same wherever it is asked."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from mqlab.engine.sequence import Sequence
from mqlab.logprobs import Logprobs

_HALF = np.log(0.5)


def echo_logprobs(tokens: Seq[int], count: int, vocab_size: int) -> Logprobs:
    """Of tokens where each is the likeliest, with probability 1/2, and each following id half as likely as the one before.

    Args:
        count: of the likeliest ones; -1 means the whole vocabulary.
    """
    width = vocab_size if count < 0 else min(count, vocab_size)
    chosen = np.array(tokens, np.int32)[:, None]
    likeliest = (chosen + np.arange(width, dtype=np.int32)) % vocab_size
    logs = np.concatenate([[_HALF], _HALF * np.arange(1, width + 1)]).astype(np.float32)
    values = np.broadcast_to(logs, (len(tokens), width + 1))
    return Logprobs.pack(np.concatenate([chosen, likeliest], axis=1).astype(np.int32), values, np.ones(len(tokens), np.int32))


def output_logprobs(drew: Seq[Sequence], tokens: Seq[tuple[int, ...]], vocab_size: int) -> tuple[Logprobs | None, ...] | None:
    """As ``SampledTokens.logprobs`` has them."""
    wanted = [sequence.params.logprobs for sequence in drew]
    if all(count is None for count in wanted):
        return None
    return tuple([None if count is None else echo_logprobs(own, count, vocab_size) for own, count in zip(tokens, wanted, strict=True)])


def prompt_logprobs(flown: Seq[Sequence], vocab_size: int) -> dict[int, Logprobs]:
    """As ``SampledTokens.prompts`` has them, of the sequences that have given nothing yet."""
    scored: dict[int, Logprobs] = {}
    for row, sequence in enumerate(flown):
        count = sequence.params.prompt_logprobs
        if count is not None and not sequence.output_index and sequence.num_prompt > 1:
            scored[row] = echo_logprobs(sequence.tokens[1 : sequence.num_prompt], count, vocab_size)
    return scored
