"""One choice of a request: the core's deltas in, outputs with text out."""

from __future__ import annotations

from collections.abc import Sequence

from mqlab.text.detokenizer import Detokenizer
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import Delta, Finish, Output, SamplingParams, Usage


class Tally:
    """Counts a request's tokens over all its choices.

    Attributes:
        usage: the sum, once the last choice has ended.
    """

    def __init__(self, prompt_tokens: int, choices: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._open = choices
        self._completion_tokens = 0
        self.usage: Usage | None = None

    def end(self, tokens: int) -> Usage | None:
        """One choice has ended after ``tokens`` tokens. Returns ``usage``."""
        self._open -= 1
        self._completion_tokens += tokens
        if not self._open:
            self.usage = Usage(self._prompt_tokens, self._completion_tokens)
        return self.usage


class ChoiceReader:
    """Reads the deltas of one choice until an output has ``finish``; nothing after that belongs to it.

    A stop string is looked for token by token, however the tokens arrive, so the token that completes it is the last one
    reported on every topology. Otherwise text that a delta brings is taken as it is: its layout has detokenised.

    Attributes:
        searches: whether there are stop strings, so that deltas must be read as they come.
    """

    __slots__ = ("_count", "_detokenizer", "_id", "_index", "_push", "_tally", "searches")

    def __init__(self, request_id: str, index: int, tokenizer: Tokenizer, params: SamplingParams, tally: Tally) -> None:
        self._id = request_id
        self._index = index
        self._detokenizer = Detokenizer(tokenizer, params)
        self._push = self._detokenizer.push
        self.searches = bool(params.stop)
        self._tally = tally
        self._count = 0

    def read(self, delta: Delta) -> Output:
        """What these new tokens add."""
        tokens, finish, reason = delta.tokens, delta.finish, delta.stop_reason
        if self.searches:
            text, tokens = self._search(tokens, finish)
            if (found := self._detokenizer.stop_reason) is not None:
                finish, reason = "stop", found
        else:
            text = self._push(tokens, finish) if delta.text is None else delta.text
        self._count += len(tokens)
        usage = None if finish is None else self._tally.end(self._count)
        return Output(id=self._id, index=self._index, text=text, tokens=tuple(tokens), finish=finish, stop_reason=reason, usage=usage)

    def _search(self, tokens: Sequence[int], finish: Finish | None) -> tuple[str, Sequence[int]]:
        """The new text, and the tokens up to the one that completes a stop string."""
        if len(tokens) <= 1:
            return self._push(tokens, finish), tokens
        pieces = []
        for count in range(1, len(tokens) + 1):
            pieces.append(self._push(tokens[count - 1 : count], finish if count == len(tokens) else None))
            if self._detokenizer.stop_reason is not None:
                return "".join(pieces), tokens[:count]
        return "".join(pieces), tokens
