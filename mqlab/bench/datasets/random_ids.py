"""Prompts of random token ids: all fresh, or in groups that share a prefix. Lengths are exact, for nothing is tokenised."""

from __future__ import annotations

import math

import numpy as np

from mqlab.bench.datasets.sample import Encoder, Sample, plain_ids
from mqlab.bench.options import DatasetConfig
from mqlab.errors import ConfigError

INPUT_LEN = 128
OUTPUT_LEN = 64
NUM_PREFIXES = 10


def random_samples(config: DatasetConfig, tokenizer: Encoder, count: int, rng: np.random.Generator) -> list[Sample]:
    """``count`` prompts of ids drawn evenly from the vocabulary without its special tokens."""
    ids = plain_ids(tokenizer)
    inputs = lengths(rng, config.input_len or INPUT_LEN, config.range_ratio, count)
    outputs = lengths(rng, config.output_len or OUTPUT_LEN, config.range_ratio, count)
    return [Sample(_draw(rng, ids, i), i, o) for i, o in zip(inputs, outputs, strict=True)]


def prefix_samples(config: DatasetConfig, tokenizer: Encoder, count: int, rng: np.random.Generator) -> list[Sample]:
    """``count`` prompts, each one of ``num_prefixes`` beginnings and an end of its own; groups as equal as they can be, shuffled.

    The workload of vLLM's ``prefix_repetition``; ``input_len`` is the whole prompt and varies in its end only.

    Raises:
        ConfigError: the prefix leaves no room for an end.
    """
    input_len = config.input_len or INPUT_LEN
    prefix_len = config.prefix_len or input_len // 2
    if prefix_len >= input_len:
        raise ConfigError(f"--prefix-len={prefix_len} must be below --input-len ({input_len}): each prompt needs an end of its own")
    ids = plain_ids(tokenizer)
    prefixes = [_draw(rng, ids, prefix_len) for _ in range(config.num_prefixes or NUM_PREFIXES)]
    groups = rng.permutation(np.arange(count) % len(prefixes))
    ends = lengths(rng, input_len - prefix_len, config.range_ratio, count)
    outputs = lengths(rng, config.output_len or OUTPUT_LEN, config.range_ratio, count)
    return [
        Sample(prefixes[group] + _draw(rng, ids, end), prefix_len + end, output)
        for group, end, output in zip(groups, ends, outputs, strict=True)
    ]


def lengths(rng: np.random.Generator, length: int, ratio: float, count: int) -> list[int]:
    """``count`` whole numbers drawn evenly from ``length`` · (1 ± ``ratio``), none below 1; vLLM's ``--random-range-ratio``."""
    low, high = max(1, math.floor(length * (1 - ratio))), math.ceil(length * (1 + ratio))
    return rng.integers(low, high, size=count, endpoint=True).tolist()


def _draw(rng: np.random.Generator, ids: np.ndarray, length: int) -> tuple[int, ...]:
    return tuple(rng.choice(ids, size=length).tolist())
