"""``echo``: each choice begins with the prompt, as text and, where logprobs are asked for, token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from mqlab.front.frontend import Frontend
from mqlab.front.logprobs import echo_texts
from mqlab.front.prompts import Prompt
from mqlab.server.openai.scores import cut
from mqlab.types import Output, TokenLogprob, Tokens


class Echo:
    """The prompt of one request, to be put before its choices.

    Args:
        ids: its token ids.
        texts: what each of them adds to its text.
        width: likeliest tokens to show the logprobs of; None shows no logprobs.
    """

    def __init__(self, ids: Sequence[int], texts: Sequence[str], width: int | None) -> None:
        self._ids = ids
        self._texts = texts
        self._width = width
        self._begun: set[int] = set()
        self._waiting: list[Output] = []
        self._lead: tuple[TokenLogprob, ...] | None = None

    @staticmethod
    async def of(front: Frontend, prompt: Prompt, width: int | None, room: int) -> tuple[Echo, Tokens]:
        """The echo of a prompt, and its ids; ``room`` new tokens must fit beside it.

        Raises:
            InvalidRequest: it is no prompt. ModelUnavailable.
        """
        tokens = await front.tokenise(prompt, room=room)
        return Echo(tokens.ids, echo_texts(front.text.tokenizer, tokens.ids, prompt), width), tokens

    def before(self, output: Output) -> list[Output]:
        """What can be shown now that this output has come, the first of each choice with the prompt before it. Other choices wait until
        the first has brought the logprobs."""
        self._waiting.append(output)
        if self._width is not None and self._lead is None:
            if output.prompt_logprobs is None:
                return []
            self._lead = self._scored(output.prompt_logprobs, self._width)
        shown = [self._after(one) for one in self._waiting]
        self._waiting.clear()
        return shown

    def _after(self, output: Output) -> Output:
        if output.index in self._begun:
            return output
        self._begun.add(output.index)
        return self._opened(output, self._lead)

    def _opened(self, output: Output, lead: tuple[TokenLogprob, ...] | None) -> Output:
        logprobs = None if lead is None else lead + (output.logprobs or ())
        return msgspec.structs.replace(output, text="".join(self._texts) + output.text, logprobs=logprobs)

    def _scored(self, scores: Sequence[TokenLogprob | None], width: int) -> tuple[TokenLogprob, ...]:
        """One for each token, those without a logprob (the first one) with nan."""
        known = zip_longest(self._ids, self._texts, scores[: len(self._ids)])
        return tuple(_unscored(token, text) if one is None else _echoed(one, text, width) for token, text, one in known)


def _unscored(token: int, text: str) -> TokenLogprob:
    return TokenLogprob(token, text, text.encode(), math.nan, 0)


def _echoed(scored: TokenLogprob, text: str, width: int) -> TokenLogprob:
    return cut(msgspec.structs.replace(scored, text=text), width)
