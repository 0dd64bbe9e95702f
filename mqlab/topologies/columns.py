"""A step in columns: one list a field, not one record a request; what few rows have is kept by row.

Source: SGLang's BatchTokenIDOutput (scheduler to detokenizer) and BatchStrOutput (detokenizer to front).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntFlag
from typing import Any, TypeVar

import msgspec

from mqlab.logprobs import Logprobs
from mqlab.types import Delta, Failure, Finish, Request, RequestStats, Step

T = TypeVar("T")


class Want(IntFlag):
    """What a row tells the detokenizer of its request.

    TEXT: tokens shall become text. SPECIAL: special tokens, too. LAST: the token that ends it, too. FIRST: it is the request's first row.
    """

    TEXT = 1
    SPECIAL = 2
    LAST = 4
    FIRST = 8

    @staticmethod
    def of(request: Request) -> int:
        """Of a request that has no row yet."""
        params = request.params
        if params.stop or params.logprobs is not None or request.pooling is not None:
            return 0
        wanted = Want.TEXT | Want.FIRST
        wanted |= Want(0) if params.skip_special_tokens else Want.SPECIAL
        return int(wanted | (Want.LAST if params.include_stop_str_in_output else Want(0)))


class Columns(msgspec.Struct, array_like=True, gc=False):
    """The deltas of a step, B rows.

    Attributes:
        ids, tokens, finishes: of each row.
        texts: of each row that brings text, of none where it is left to the front.
        stop_reasons, errors, logprobs, prompt_logprobs, embeddings, stats: by row, where there are any.
    """

    client: int
    ids: list[str]
    tokens: list[list[int]]
    finishes: list[Finish | None]
    texts: list[str | None]
    stop_reasons: dict[int, int | str]
    errors: dict[int, Failure]
    logprobs: dict[int, Logprobs]
    prompt_logprobs: dict[int, Logprobs]
    embeddings: dict[int, bytes]
    stats: dict[int, RequestStats]

    def step(self) -> Step:
        """Rows again."""
        texts = self.texts or [None] * len(self.ids)
        deltas = [
            Delta(id, tokens, finish, text=text)
            for id, tokens, finish, text in zip(self.ids, self.tokens, self.finishes, texts, strict=True)
        ]
        for name, column in (
            ("stop_reason", self.stop_reasons),
            ("error", self.errors),
            ("logprobs", self.logprobs),
            ("prompt_logprobs", self.prompt_logprobs),
            ("embedding", self.embeddings),
            ("stats", self.stats),
        ):
            for row, value in column.items():
                setattr(deltas[row], name, value)
        return Step(deltas, self.client)


class TokenColumns(Columns, tag="t"):
    """What the scheduler sends.

    Attributes:
        wants: of each row, what the detokenizer must know of its request: bits of Want.
    """

    wants: list[int]


class TextColumns(Columns, tag="x"):
    """What the detokenizer sends."""


def token_columns(step: Step, wants: list[int]) -> TokenColumns:
    """A step for the detokenizer."""
    return TokenColumns(**_columns(step), wants=wants)


def text_columns(step: Step) -> TextColumns:
    """A step for the front."""
    return TextColumns(**_columns(step))


def _columns(step: Step) -> dict[str, Any]:
    deltas = step.deltas
    texts = [delta.text for delta in deltas]
    return {
        "client": step.client,
        "ids": [delta.id for delta in deltas],
        "tokens": [delta.tokens for delta in deltas],
        "finishes": [delta.finish for delta in deltas],
        "texts": texts if any(text is not None for text in texts) else [],
        "stop_reasons": _some(delta.stop_reason for delta in deltas),
        "errors": _some(delta.error for delta in deltas),
        "logprobs": _some(delta.logprobs for delta in deltas),
        "prompt_logprobs": _some(delta.prompt_logprobs for delta in deltas),
        "embeddings": _some(delta.embedding for delta in deltas),
        "stats": _some(delta.stats for delta in deltas),
    }


def _some(column: Iterable[T | None]) -> dict[int, T]:
    return {row: value for row, value in enumerate(column) if value is not None}
