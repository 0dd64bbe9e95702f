"""Plans of every kind, to be run before there are requests."""

from __future__ import annotations

import msgspec
import numpy as np

from mqlab.plan import Chunk, Plan
from mqlab.types import ModelInfo, SamplingParams

_FILTERED = SamplingParams(top_k=2, top_p=0.9, min_p=1e-9)
_STEERED = SamplingParams(top_k=1000, top_p=0.9, min_p=1e-9, presence_penalty=1.0, logit_bias={0: 1.0}, logprobs=1)


def warm_up_plans(info: ModelInfo, most_tokens: int) -> list[Plan]:
    """Decodes, of one round and of two; a draw by the host; and prompts of 1, 2, 4 ... tokens, alone and beside few and many decodes of
    short and of long sequences: what kernels are compiled for depends on all of that. All lies in the pool's first block.

    Args:
        most_tokens: of a step.
    """
    short, long = (_chunk(info, start, 1) for start in (0, info.max_prompt_len - 1))
    mask = np.full(-(-info.vocab_size // 32), 2**32 - 1, np.uint32)
    by_host = msgspec.structs.replace(short, params=_STEERED, history=(0,), num_prompt=1, mask=mask)
    twice = msgspec.structs.replace(short, rounds=2)
    prompts = [_chunk(info, 0, length) for length in _doubling(min(most_tokens, info.max_prompt_len))]
    beside = [(*(decode,) * count, prompt) for prompt in prompts for decode in (short, long) for count in (1, info.max_num_seqs - 1)]
    steps = [(short,), (twice,), (by_host,), *[(prompt,) for prompt in prompts], *beside]
    return [
        Plan(chunks) for chunks in steps if len(chunks) <= info.max_num_seqs and sum([len(one.tokens) for one in chunks]) <= most_tokens
    ]


def _chunk(info: ModelInfo, start: int, length: int) -> Chunk:
    """Its tokens, and those of two rounds, are in block 0."""
    blocks = (0,) * -(-(start + length + 1) // info.block_size)
    return Chunk("warm-up", (0,) * length, start, blocks, True, _FILTERED, seed=0)


def _doubling(most: int) -> list[int]:
    """1, 2, 4 ... and ``most`` itself."""
    lengths = [1]
    while lengths[-1] * 2 < most:
        lengths.append(lengths[-1] * 2)
    return sorted({*lengths, most})
