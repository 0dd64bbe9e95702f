"""Sonnet: prompts of lines from a poem, which share how they begin. The workload of vLLM's dataset of that name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from mqlab.bars import progress_bar
from mqlab.bench.datasets.files import bad_file, read_text
from mqlab.bench.datasets.sample import Encoder, Sample
from mqlab.bench.options import DatasetConfig
from mqlab.errors import ConfigError

INPUT_LEN = 550
OUTPUT_LEN = 150
PREFIX_LEN = 200

_REQUEST = "Pick as many lines as you can from these poem lines:\n"
_EXPECTED = "lines of plain text in UTF-8"


def sonnet_samples(config: DatasetConfig, tokenizer: Encoder, count: int, rng: np.random.Generator) -> list[Sample]:
    """``count`` prompts of whole lines: a request, the poem's first lines up to ``prefix_len`` tokens, random ones up to ``input_len``.

    No prompt is longer than ``input_len``; each falls short of it by about a line at most. Unlike vLLM's, no chat template is
    put around it.

    Raises:
        ConfigError: no lines, or lengths that leave no room for one.
    """
    poem = _Poem.read(Path(config.dataset_path or ""), tokenizer)
    input_len, output_len = config.input_len or INPUT_LEN, config.output_len or OUTPUT_LEN
    prefix_len = config.prefix_len or min(PREFIX_LEN, input_len // 2)
    if prefix_len >= input_len:
        raise ConfigError(f"--prefix-len={prefix_len} must be below --input-len ({input_len}): each prompt needs lines of its own")
    prefix = poem.extend(poem.prompt(()), range(len(poem.lines)), prefix_len)
    samples = []
    for _ in progress_bar("prompts", iterable=range(count), unit="prompt", leave=False):
        prompt = poem.extend(prefix, rng.integers(len(poem.lines), size=input_len).tolist(), input_len)
        if len(prompt.chosen) == len(prefix.chosen):
            raise ConfigError(f"--input-len={input_len} leaves no room for a line of {config.dataset_path}: raise it")
        samples.append(Sample(prompt.text, prompt.tokens, output_len))
    return samples


@dataclass(frozen=True)
class _Prompt:
    """Lines by their numbers, the text that they make, and its tokens."""

    chosen: tuple[int, ...]
    text: str
    tokens: int


@dataclass(frozen=True)
class _Poem:
    lines: list[str]
    tokens: list[int]
    tokenizer: Encoder

    @staticmethod
    def read(path: Path, tokenizer: Encoder) -> _Poem:
        lines = [line + "\n" for line in read_text(path, _EXPECTED).splitlines() if line.strip()]
        if not lines:
            raise bad_file(path, "", "is empty", _EXPECTED)
        return _Poem(lines, [len(tokenizer.encode(line, add_special_tokens=False)) for line in lines], tokenizer)

    def prompt(self, chosen: tuple[int, ...]) -> _Prompt:
        """The prompt that asks about these lines."""
        text = _REQUEST + "".join(self.lines[i] for i in chosen)
        return _Prompt(chosen, text, len(self.tokenizer.encode(text)))

    def extend(self, prompt: _Prompt, more: Sequence[int], limit: int) -> _Prompt:
        """``prompt`` with as many of ``more`` as stay within ``limit`` tokens."""
        totals = accumulate(self.tokens[i] for i in more)
        added = [i for i, total in zip(more, totals, strict=True) if prompt.tokens + total <= limit]
        longer = self.prompt(prompt.chosen + tuple(added))
        # Tokens join differently across the end of a line: the sum was an estimate.
        while longer.tokens > limit and len(longer.chosen) > len(prompt.chosen):
            longer = self.prompt(longer.chosen[:-1])
        return longer
