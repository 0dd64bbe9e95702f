"""The shapes of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mqlab.front.prompts import Prompt
from mqlab.server.answer import Piece
from mqlab.server.errors import bad_request
from mqlab.server.protocol import CompletionBody
from mqlab.server.scores import completion_scores
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

    def _scores(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        scores = completion_scores(tokens, self.offset)
        self.offset += sum(len(token.text) for token in tokens)
        return scores


class Completions:
    """See answer.Format."""

    prefix = "cmpl-"
    object = "text_completion"
    chunk_object = "text_completion"

    def prompts(self, body: CompletionBody) -> list[Prompt]:
        """One prompt, or several; all text or all token ids."""
        prompt: Any = body.prompt
        if isinstance(prompt, str):
            return [prompt]
        kinds = {type(item) for item in prompt}
        if kinds == {int}:
            return [prompt]
        if kinds in ({str}, {list}):
            return list(prompt)
        given = "an empty list" if not prompt else "a mixed list"
        raise bad_request(f"prompt is {given}; it must be text, a list of texts, token ids, or a list of lists of token ids", "prompt")

    def piece(self, body: CompletionBody, index: int) -> Piece:
        """See answer.Format."""
        del body
        return TextPiece(index)

    def add_prompt_scores(self, answer: dict[str, Any], scores: Sequence[object]) -> None:
        """See answer.Format."""
        for choice, own in zip(answer["choices"], scores, strict=True):
            choice["prompt_logprobs"] = own
