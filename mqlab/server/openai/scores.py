"""Logprobs as OpenAI's clients read them: a chat's list of objects, and the four parallel lists of the older completions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from mqlab.types import TokenLogprob

LEAST = -9999.0
"""Stands for minus infinity, which JSON has no word for. Source: OpenAI's API reference."""


def value(token: TokenLogprob) -> float | None:
    """A logprob as JSON takes it; None where there is none."""
    return None if math.isnan(token.logprob) else max(token.logprob, LEAST)


def chat_scores(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """Of a chat's choice."""
    return {"content": [{**_named(token), "top_logprobs": [_named(one) for one in token.top]} for token in tokens], "refusal": None}


def completion_scores(tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """Of a completion's choice, whose text goes on at ``offset``. The tokens joined are its text."""
    starts = []
    for token in tokens:
        starts.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [value(token) for token in tokens],
        "top_logprobs": [_likeliest(token) for token in tokens],
        "text_offset": starts,
    }


def prompt_scores(tokens: Iterable[TokenLogprob | None], width: int) -> list[dict[str, Any] | None]:
    """vLLM's prompt_logprobs: for each token of the prompt an object by token id, of the token itself and the ``width`` likeliest ones."""
    return [None if token is None else {str(one.token): _ranked(one) for one in (token, *cut(token, width).top)} for token in tokens]


def cut(token: TokenLogprob, width: int) -> TokenLogprob:
    """With at most ``width`` of the likeliest ones; -1 leaves them all."""
    if width < 0 or width >= len(token.top):
        return token
    return TokenLogprob(token.token, token.text, token.raw, token.logprob, token.rank, token.top[:width])


def _named(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.label, "logprob": value(token), "bytes": list(token.raw)}


def _likeliest(token: TokenLogprob) -> dict[str, float | None] | None:
    """By text, the likelier of two that read the same; the token itself is among them, at the end unless it is likely."""
    if math.isnan(token.logprob):
        return None
    found: dict[str, float | None] = {}
    for one in (*token.top, token):
        found.setdefault(one.label, value(one))
    return found


def _ranked(token: TokenLogprob) -> dict[str, Any]:
    return {"logprob": value(token), "rank": token.rank, "decoded_token": token.label}
