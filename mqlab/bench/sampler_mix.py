"""The kinds of requests that the sampler's benchmark draws for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mqlab.bench.sampler_options import SamplerConfig
from mqlab.plan import Chunk
from mqlab.types import SamplingParams

_ALLOWED_SHARE = 0.3


@dataclass(frozen=True)
class Kind:
    """One kind of request.

    Attributes:
        what: it asks for, in words.
        params: SamplingParams.
        masked: with a mask, as a grammar sets it, that allows 30 % of the vocabulary.
        biased: with biases of ten random tokens.
    """

    what: str
    params: dict[str, Any]
    masked: bool = False
    biased: bool = False


KINDS = {
    "greedy": Kind("temperature 0", {"temperature": 0.0}),
    "random": Kind("temperature 1", {}),
    "top_p": Kind("top_p 0.9", {"top_p": 0.9}),
    "top_k": Kind("top_k 50", {"top_k": 50}),
    "top_k_top_p": Kind("temperature 0.8, top_k 40, top_p 0.95", {"temperature": 0.8, "top_k": 40, "top_p": 0.95}),
    "min_p": Kind("min_p 0.05", {"min_p": 0.05}),
    "penalties": Kind(
        "presence 0.5, frequency 0.5, repetition 1.1", {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
    ),
    "logit_bias": Kind("ten biases", {}, biased=True),
    "logprobs": Kind("logprobs 5", {"logprobs": 5}),
    "mask": Kind("a mask that allows 30 % of the tokens", {}, masked=True),
}
"""In the mix, one after the other until the batch is full."""


def batch_of(names: list[str], config: SamplerConfig) -> tuple[Chunk, ...]:
    """A batch of ``config.batch_size`` requests of these kinds in turns."""
    return tuple(_chunk(KINDS[names[row % len(names)]], row, config) for row in range(config.batch_size))


def _chunk(kind: Kind, row: int, config: SamplerConfig) -> Chunk:
    rng = np.random.default_rng((config.seed, row))
    vocab = config.vocab_size
    bias = dict.fromkeys(rng.integers(vocab, size=10).tolist(), 5.0) if kind.biased else {}
    params = SamplingParams(**kind.params, logit_bias=bias)
    history = rng.integers(vocab, size=config.history_len).tolist() if params.penalised else ()
    mask = np.packbits(rng.random(-(-vocab // 32) * 32) < _ALLOWED_SHARE, bitorder="little").view(np.uint32) if kind.masked else None
    prompt = config.history_len // 2
    return Chunk(f"r{row}", (0,), 0, (0,), True, params, row, prompt, mask=mask, history=history, num_prompt=prompt)
