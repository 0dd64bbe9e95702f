"""One choice of a request: the core's deltas in, outputs with text out."""

from __future__ import annotations

from collections.abc import Sequence

from mqlab.front.logprobs import prompt_logprobs, token_logprobs
from mqlab.text.bytelevel import ByteLevelDecoder
from mqlab.text.detokenizer import Detokenizer
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import Delta, Output, RequestStats, SamplingParams, TokenLogprob, Usage


class Tally:
    """Counts a request's tokens over all its choices.

    Attributes:
        usage: the sum, once the last choice has ended.
    """

    def __init__(self, prompt_tokens: int, choices: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._open = choices
        self._completion_tokens = 0
        self._cached_tokens = prompt_tokens
        self.usage: Usage | None = None

    def end(self, tokens: int, stats: RequestStats | None = None) -> Usage | None:
        """One choice has ended after ``tokens`` tokens, and has cost the engine so much. Returns ``usage``."""
        self._open -= 1
        self._completion_tokens += tokens
        # The choices of a prompt find each other's blocks: what was there before is what the first of them found.
        self._cached_tokens = min(self._cached_tokens, 0 if stats is None else stats.cached_tokens)
        if not self._open:
            self.usage = Usage(self._prompt_tokens, self._completion_tokens, self._cached_tokens)
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
        plain: whether ``escaped`` has an answer for most deltas.
    """

    __slots__ = (
        "_count", "_decoder", "_detokenizer", "_escaped", "_id", "_index", "_prompt", "_push", "_stats", "_tally", "_tokenizer",
        "_wanted", "plain", "stepwise",
    )  # fmt: skip

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
        self._stats: RequestStats | None = None
        self.stepwise = bool(params.stop) or self._wanted
        decoder = self._detokenizer.decoder
        self.plain = isinstance(decoder, ByteLevelDecoder) and not self.stepwise and prompt is None
        if isinstance(decoder, ByteLevelDecoder):
            self._decoder, self._escaped = decoder, decoder.pieces.escaped

    def escaped(self, delta: Delta) -> bytes | None:
        """The new text of a delta of one token as JSON has it between quotes, looked up: for ``plain`` choices.

        None, and nothing is noted, where the delta must be read.
        """
        if delta.finish is not None or delta.text is not None:
            return None
        try:
            (token,) = delta.tokens
        except ValueError:
            return None
        text = self._escaped[token]
        if text is None or not self._decoder.whole:
            return None
        self._count += 1
        return text

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
        if self.stepwise:  # a stop string may end it, and then the core's last word never comes
            self._stats = delta.stats or self._stats
        stats = None if finish is None else delta.stats or self._stats
        return Output(
            id=self._id,
            index=self._index,
            text=text,
            tokens=tuple(tokens),
            finish=finish,
            stop_reason=reason,
            usage=None if finish is None else self._tally.end(self._count, stats),
            logprobs=logprobs,
            prompt_logprobs=None if self._prompt is None else self._scored_prompt(self._prompt, delta),
            stats=stats,
        )

    def _scored_prompt(self, prompt: Sequence[int], first: Delta) -> tuple[TokenLogprob | None, ...]:
        self._prompt = None
        return prompt_logprobs(self._tokenizer, prompt, first.prompt_logprobs)
