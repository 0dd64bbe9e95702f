"""Guessing what comes next from what came before: a text that repeats itself goes on as it did.

Source: prompt lookup decoding (A. Saxena, 2023); vLLM's ``ngram`` method, whose settings are prompt_lookup_min and _max.
"""

from __future__ import annotations

from collections.abc import Sequence


class Ngrams:
    """Where each run of ``low`` to ``high`` tokens of one growing sequence was last followed by something.

    Kept up to date as the sequence grows, so that a guess costs the same at any length: about 1 µs a token, and 0.2 kB a token
    and length of run.
    """

    def __init__(self, low: int, high: int) -> None:
        self._sizes = range(low, high + 1)
        self._next: dict[tuple[int, ...], int] = {}
        self._seen = 0  # every run that ends before this position is known

    def propose(self, tokens: Sequence[int], count: int) -> tuple[int, ...]:
        """Up to ``count`` tokens that followed the latest earlier occurrence of the longest run of last tokens; none without one.

        Args:
            tokens: the sequence, which begins with what earlier calls were given.
        """
        self._learn(tokens)
        length = len(tokens)
        for size in reversed(self._sizes):
            start = self._next.get(tuple(tokens[length - size :])) if size <= length else None
            if start is not None:
                return tuple(tokens[start : start + count])
        return ()

    def _learn(self, tokens: Sequence[int]) -> None:
        """Know every run but those that end with the last token, which nothing follows."""
        for end in range(max(self._seen, 1), len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._next[tuple(tokens[end - size : end])] = end
        self._seen = max(self._seen, len(tokens))
