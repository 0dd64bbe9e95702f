"""One request of a workload, and what a dataset needs of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Sample:
    """A request to send.

    Attributes:
        prompt: text, or token ids where the length must be exact.
        prompt_tokens: its length by the tokenizer that the samples were made with.
        output_tokens: new tokens to ask for.
        at_s: seconds from the start of the run, where the dataset says when requests arrive.
    """

    prompt: str | tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    at_s: float | None = None


class Encoder(Protocol):
    """Text to ids. ``mqlab.text.tokenizer.Tokenizer`` is one."""

    vocab_size: int
    special_ids: frozenset[int]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of ``text``."""
        ...


class ByteTokenizer:
    """One id per byte of UTF-8: for engines that have no tokenizer, because they answer without a model."""

    def __init__(self, vocab_size: int = 256, special_ids: Sequence[int] = ()) -> None:
        self.vocab_size = vocab_size
        self.special_ids = frozenset(special_ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The bytes; nothing is ever added."""
        del add_special_tokens
        return list(text.encode())


def prompt_ids(sample: Sample, tokenizer: Encoder) -> list[int]:
    """The prompt as ids."""
    return tokenizer.encode(sample.prompt) if isinstance(sample.prompt, str) else list(sample.prompt)


def plain_ids(tokenizer: Encoder) -> np.ndarray:
    """Every id that is ordinary text: int64, [vocabulary - special]. A special token in a prompt may end or reshape it."""
    ids = np.arange(tokenizer.vocab_size)
    return ids[~np.isin(ids, list(tokenizer.special_ids))]
