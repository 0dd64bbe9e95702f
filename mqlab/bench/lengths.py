"""How long prompts and answers are, drawn per request: all alike, or spread as in the data sets of the seeds' benchmarks.

``sharegpt``: log-normal, prompts with a spread (standard deviation of the logarithm) of 1.1 and answers of 0.7, the long tail
cut at 4.5 and at 3 times the mean. The means of ShareGPT with Llama 3's tokenizer, 225 and 194 tokens, are those of SGLang's PR 1738
(51.03 requests/s, 11,459 tokens/s in, 9,894 out). ``sonnet``: prompts within half a line (6 tokens) of their mean, for whole lines
are taken, and answers of one length, as in vLLM's data set.

Every draw has the mean that was asked for, to a token, whatever the seed: normal deviates come one from each of ``count`` equally likely
intervals, and are scaled together. So all rounds of a comparison are the same amount of work.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from mqlab.bench.compare_options import Lengths

_LINE = 12
"""Tokens of a line of the sonnets."""

_HALVINGS = 60


@dataclass(frozen=True)
class _Spread:
    """A log-normal distribution, cut at ``cut`` means."""

    sigma: float
    cut: float


_PROMPTS, _ANSWERS = _Spread(1.1, 4.5), _Spread(0.7, 3.0)


def draw_lengths(kind: Lengths, count: int, input_len: int, output_len: int, seed: int) -> tuple[list[int], list[int]]:
    """Tokens of ``count`` prompts, and new tokens of their answers; a function of the arguments alone.

    Args:
        input_len, output_len: the means.
    """
    if kind == "fixed":
        return [input_len] * count, [output_len] * count
    rng = np.random.default_rng(seed)
    if kind == "sonnet":
        half = min(_LINE // 2, input_len - 1)
        return _evenly(rng, count, input_len - half, input_len + half), [output_len] * count
    return _spread(rng, count, input_len, _PROMPTS), _spread(rng, count, output_len, _ANSWERS)


def longest(kind: Lengths, input_len: int, output_len: int) -> tuple[int, int]:
    """The most that a prompt and an answer can have."""
    if kind == "fixed":
        return input_len, output_len
    if kind == "sonnet":
        return input_len + _LINE // 2, output_len
    return round(input_len * _PROMPTS.cut), round(output_len * _ANSWERS.cut)


def _evenly(rng: np.random.Generator, count: int, low: int, high: int) -> list[int]:
    places = (np.arange(count) + 0.5) / count
    return rng.permutation(low + (places * (high - low + 1)).astype(int)).tolist()


def _spread(rng: np.random.Generator, count: int, mean: int, spread: _Spread) -> list[int]:
    places = (np.arange(count) + rng.random(count)) / count
    deviates = np.array([NormalDist().inv_cdf(min(max(place, 1e-9), 1 - 1e-9)) for place in places])
    shape = np.exp(spread.sigma * rng.permutation(deviates))
    return _scaled(shape, mean, spread.cut)


def _scaled(shape: np.ndarray, mean: int, cut: float) -> list[int]:
    """``shape`` times the factor with which its mean, rounded and cut, is ``mean``."""
    low, high = 0.0, mean * cut / float(shape.min())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _cut(shape * middle, mean, cut).mean() < mean:
            low = middle
        else:
            high = middle
    return _cut(shape * high, mean, cut).tolist()


def _cut(lengths: np.ndarray, mean: int, cut: float) -> np.ndarray:
    return np.clip(np.round(lengths), 1, round(mean * cut)).astype(int)
