"""How many tokens each step ran: a histogram."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""A step counts at the first bound that its tokens do not exceed, or beyond the last. Source: vLLM (0.33), iteration_tokens."""


class Iterations:
    """Counts steps by their tokens.

    Attributes:
        sum: tokens of all steps.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0

    def note(self, tokens: int) -> None:
        """A step ran so many."""
        self._counts[bisect_left(BOUNDS, tokens)] += 1
        self.sum += tokens

    @property
    def counts(self) -> tuple[int, ...]:
        """Steps by bound, and those beyond the last one."""
        return tuple(self._counts)
