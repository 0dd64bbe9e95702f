"""The shapes of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mqlab.front.textmodel import TextModel
from mqlab.server.openai.answer import Piece, Plan
from mqlab.server.openai.fields import one_or_several
from mqlab.server.openai.protocol import CompletionBody
from mqlab.server.openai.scores import completion_scores
from mqlab.types import Output, TokenLogprob

_encode = msgspec.json.encode


class TextPiece(Piece):
    """One completion."""

    __slots__ = ()

    def choice(self) -> dict[str, Any]:
        """See Piece.choice."""
        return {
            "index": self.index,
            "text": "".join(self.texts),
            "logprobs": None if self.logprobs is None else self._scores(self.logprobs),
            "finish_reason": self.finish,
            "stop_reason": self.stop_reason,
        }

    def events(self, output: Output) -> list[bytes]:
        """See Piece.events."""
        events = []
        if output.text or output.logprobs:
            scores = _encode(self._scores(output.logprobs)) if output.logprobs else b"null"
            parts = (self.index, _encode(output.text), scores)
            events.append(b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":null}' % parts)
        if output.finish is not None:
            self.end(output)
            end = (self.index, _encode(self.finish), _encode(self.stop_reason))
            events.append(b'{"index":%d,"text":"","logprobs":null,"finish_reason":%b,"stop_reason":%b}' % end)
        return events

    def frame(self) -> tuple[bytes, bytes]:
        """See Piece.frame."""
        return b'{"index":%d,"text":"' % self.index, b'","logprobs":null,"finish_reason":null}'

    def _scores(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        scores = completion_scores(tokens, self.offset)
        self.offset += sum(len(token.text) for token in tokens)
        return scores


class Completions:
    """See answer.Format."""

    prefix = "cmpl-"
    object = "text_completion"
    chunk_object = "text_completion"

    def plan(self, body: CompletionBody, text: TextModel) -> Plan:
        """See answer.Format."""
        del text
        return Plan(one_or_several(body.prompt, "prompt"), body.params(), TextPiece, body.constraint)

    def add_prompt_scores(self, answer: dict[str, Any], scores: Sequence[object]) -> None:
        """See answer.Format."""
        for choice, own in zip(answer["choices"], scores, strict=True):
            choice["prompt_logprobs"] = own
