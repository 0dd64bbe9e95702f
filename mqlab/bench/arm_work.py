"""What every arm of a comparison is asked to do in a round: requests by seed, and when they come."""

from __future__ import annotations

import math
import random
from functools import cache
from pathlib import Path

import msgspec

from mqlab.bench.arrivals import arrival_times
from mqlab.bench.compare_options import Lengths
from mqlab.bench.lengths import draw_lengths
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import ModelInfo, Request, SamplingParams


class Work(msgspec.Struct, frozen=True):
    """One run that is asked for: requests by seed, so that every arm gets the same.

    Attributes:
        input_len, output_len: tokens of a prompt and of an answer; their means where ``lengths`` is not ``fixed``.
        prefix_len: tokens of each prompt that are alike; of a shorter prompt all but one.
        rate: requests a second, Poisson; 0 hands over all of them at once.
    """

    seed: int
    num_prompts: int
    input_len: int
    output_len: int
    prefix_len: int = 0
    lengths: Lengths = "fixed"
    rate: float = 0.0


def make_requests(work: Work, info: ModelInfo) -> list[Request]:
    """Prompts that depend on the seed alone; greedy, so that every arm must give the same tokens.

    Random ids; for an echo with a tokenizer, whose answers are its prompts, passages of English instead.
    """
    draw = random.Random(work.seed)
    inputs, outputs = draw_lengths(work.lengths, work.num_prompts, work.input_len, work.output_len, work.seed)
    prompts = _passages(draw, inputs, info.path) if info.architecture == "echo" and info.path else _random(draw, work, inputs, info)
    return [
        Request(f"{work.seed}-{index}", prompt, SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True))
        for index, (prompt, length) in enumerate(zip(prompts, outputs, strict=True))
    ]


def due_times(work: Work) -> list[int]:
    """When each request is due, in ns after the start."""
    times = arrival_times(work.num_prompts, work.rate or math.inf, seed=work.seed)
    return [round(at * 1e9) for at in times.tolist()]


def _random(draw: random.Random, work: Work, lengths: list[int], info: ModelInfo) -> list[list[int]]:
    prefix = [draw.randrange(info.vocab_size) for _ in range(work.prefix_len)]
    prompts = []
    for length in lengths:
        shared = prefix[: length - 1]
        prompts.append(shared + [draw.randrange(info.vocab_size) for _ in range(length - len(shared))])
    return prompts


def _passages(draw: random.Random, lengths: list[int], folder: str) -> list[list[int]]:
    text = _corpus(folder)
    starts = [draw.randrange(len(text) - length) for length in lengths]
    return [text[start : start + length] for start, length in zip(starts, lengths, strict=True)]


@cache
def _corpus(folder: str) -> list[int]:
    from pydoc_data.topics import topics

    return Tokenizer.load(Path(folder)).encode("\n\n".join(topics.values()), add_special_tokens=False)
