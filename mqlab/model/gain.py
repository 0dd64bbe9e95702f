"""What the chunks of a plan gain, round by round."""

from __future__ import annotations

from mqlab.logprobs import Logprobs, join
from mqlab.model.sampler import Sampled
from mqlab.plan import Chunk


class Gain:
    """The tokens of one chunk, and their logprobs where it asks for them."""

    __slots__ = ("_chunk", "logprobs", "tokens")

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self.tokens: list[int] = []
        self.logprobs: Logprobs | None = None

    def goes_on(self, number: int) -> bool:
        """Whether it runs in round ``number``, counted from 0."""
        return number < self._chunk.rounds

    def next(self) -> Chunk:
        """What it runs in the round to come, which is not the first."""
        return self._chunk.after(self.tokens)

    def add(self, token: int, logprobs: Logprobs | None) -> None:
        """One more."""
        self.tokens.append(token)
        self.logprobs = join(self.logprobs, logprobs)

    def draws(self) -> list[Chunk]:
        """The draws of its first round, a chunk of one token each: one, or one more than it has drafts."""
        chunk = self._chunk
        return [chunk.guess(number) for number in range(chunk.drafts + 1)] if chunk.drafts else [chunk]

    def verify(self, sampled: Sampled, row: int) -> None:
        """Take the draws from ``row`` on, as far as the drafts were right.

        A draw depends on what stands before it, on seed and index alone; so where a draft was right, the next draw is the one that
        plain decoding would make, at any temperature.
        """
        chunk = self._chunk
        for number in range(chunk.drafts + 1):
            token = sampled.tokens[row + number]
            self.add(token, None if sampled.logprobs is None else sampled.logprobs[row + number])
            if number < chunk.drafts and token != chunk.tokens[number - chunk.drafts]:
                return
