"""One choice of a request: the core's deltas in, outputs with text out."""

from __future__ import annotations

from collections.abc import Sequence

from mqlab.front.logprobs import prompt_logprobs, token_logprobs
from mqlab.text.detokenizer import Detokenizer
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import Delta, Output, SamplingParams, TokenLogprob, Usage


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
    reported on every topology; logprobs, too, want each token's own text. Otherwise text that a delta brings is taken as it is: its
    layout has detokenised, and searched it.

    Args:
        request_id: of the request, common to its choices.
        index: which of the choices.
        prompt: its token ids where their logprobs are asked for with this choice; None elsewhere.

    Attributes:
        stepwise: whether there are stop strings or logprobs, so that deltas must be read as they come.
    """

    __slots__ = ("_count", "_detokenizer", "_id", "_index", "_prompt", "_push", "_tally", "_tokenizer", "_wanted", "stepwise")

    def __init__(
        self, request_id: str, index: int, tokenizer: Tokenizer, params: SamplingParams, tally: Tally, prompt: Sequence[int] | None = None
    ) -> None:
        self._id = request_id
        self._index = index
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, params)
        self._push = self._detokenizer.push
        self._wanted = params.logprobs is not None
        self._prompt = prompt
        self._tally = tally
        self._count = 0
        self.stepwise = bool(params.stop) or self._wanted

    def read(self, delta: Delta) -> Output:
        """What these new tokens add."""
        tokens, finish, reason, logprobs = delta.tokens, delta.finish, delta.stop_reason, None
        if self._wanted or (self.stepwise and delta.text is None):
            text, pieces = self._detokenizer.push_each(tokens, finish)
            tokens = tokens[: len(pieces)]
            if self._wanted:
                logprobs = token_logprobs(self._tokenizer, delta.logprobs, pieces)
            if (found := self._detokenizer.stop_reason) is not None:
                finish, reason = "stop", found
        else:
            text = self._push(tokens, finish) if delta.text is None else delta.text
        self._count += len(tokens)
        return Output(
            id=self._id,
            index=self._index,
            text=text,
            tokens=tuple(tokens),
            finish=finish,
            stop_reason=reason,
            usage=None if finish is None else self._tally.end(self._count),
            logprobs=logprobs,
            prompt_logprobs=None if self._prompt is None else self._scored_prompt(self._prompt, delta),
        )

    def _scored_prompt(self, prompt: Sequence[int], first: Delta) -> tuple[TokenLogprob | None, ...]:
        self._prompt = None
        return prompt_logprobs(self._tokenizer, prompt, first.prompt_logprobs)
