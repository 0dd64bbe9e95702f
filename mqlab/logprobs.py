"""Logarithms of probabilities, packed: what crosses processes is bytes, not one object a token."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np


class Logprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of T tokens, and of the likeliest ones in the place of each.

    Attributes:
        width: columns: the token itself, then the likeliest ones in descending order (which may hold it once more).
        tokens: int32 [T, width], token ids.
        values: float32 [T, width], natural logarithms.
        ranks: int32 [T], rank of each token among all, from 1.
    """

    width: int
    tokens: bytes
    values: bytes
    ranks: bytes

    @staticmethod
    def pack(tokens: np.ndarray, values: np.ndarray, ranks: np.ndarray) -> Logprobs:
        """From arrays: tokens int32 and values float32 [T, width], ranks int32 [T]."""
        return Logprobs(tokens.shape[1], tokens.tobytes(), values.tobytes(), ranks.tobytes())

    def __add__(self, other: Logprobs) -> Logprobs:
        """Those of consecutive tokens, of the same width, as one."""
        return Logprobs(self.width, self.tokens + other.tokens, self.values + other.values, self.ranks + other.ranks)

    @staticmethod
    def concat(parts: Sequence[Logprobs]) -> Logprobs:
        """At least one, of the same width, one after the other."""
        columns = zip(*((part.tokens, part.values, part.ranks) for part in parts), strict=True)
        return Logprobs(parts[0].width, *map(b"".join, columns))

    @property
    def count(self) -> int:
        """T."""
        return len(self.ranks) // 4

    def cut(self, count: int) -> Logprobs:
        """The first ``count`` tokens."""
        row = 4 * self.width
        return Logprobs(self.width, self.tokens[: count * row], self.values[: count * row], self.ranks[: count * 4])

    def each(self) -> list[Logprobs]:
        """Those of each token by itself."""
        row = 4 * self.width
        return [
            Logprobs(self.width, self.tokens[i * row : (i + 1) * row], self.values[i * row : (i + 1) * row], self.ranks[4 * i : 4 * i + 4])
            for i in range(self.count)
        ]

    def rows(self) -> list[list[tuple[int, float]]]:
        """(token id, logprob) of each column, by token."""
        tokens, values, width = array("i", self.tokens), array("f", self.values), self.width
        pairs = list(zip(tokens, values, strict=True))
        return [pairs[start : start + width] for start in range(0, len(pairs), width)]

    def rank_list(self) -> list[int]:
        """``ranks`` as numbers."""
        return array("i", self.ranks).tolist()


def join(first: Logprobs | None, second: Logprobs | None) -> Logprobs | None:
    """Both, one after the other, where there are any."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


_HALF = math.log(0.5)


def made_up(tokens: Sequence[int], count: int, vocab_size: int) -> Logprobs:
    """Of tokens where each is the likeliest, with probability 1/2, and each following id half as likely as the one before.

    Args:
        count: of the likeliest ones; -1 means the whole vocabulary.
    """
    import numpy as np  # who scores nothing starts without it

    width = vocab_size if count < 0 else min(count, vocab_size)
    chosen = np.array(tokens, np.int32)[:, None]
    likeliest = (chosen + np.arange(width, dtype=np.int32)) % vocab_size
    logs = np.concatenate([[_HALF], _HALF * np.arange(1, width + 1)]).astype(np.float32)
    values = np.broadcast_to(logs, (len(tokens), width + 1))
    return Logprobs.pack(np.concatenate([chosen, likeliest], axis=1).astype(np.int32), values, np.ones(len(tokens), np.int32))


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """A token with the logarithm of its probability.

    Attributes:
        token: its id.
        text: what it adds to the text, so that the texts of all tokens together are the text: of several tokens that make one
            character the last has it; hidden special tokens, the end token and ids without an entry have none.
        raw: the bytes that it stands for by itself: a part of a character just that part, a special token its name.
        logprob: natural logarithm.
        rank: among the whole vocabulary, from 1.
        top: the likeliest tokens in its place, in order.
    """

    token: int
    text: str
    raw: bytes
    logprob: float
    rank: int
    top: tuple[TokenLogprob, ...] = ()

    @property
    def label(self) -> str:
        """What to call it: its text, a special token's name, or ``bytes:\\xe2…`` for a part of a character (as OpenAI does)."""
        if self.text:
            return self.text
        try:
            return self.raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.raw)
