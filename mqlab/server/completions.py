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
from mqlab.types import TokenLogprob

_encode = msgspec.json.encode


class Completions:
    """See answer.Format."""

    prefix = "cmpl-"
    object = "text_completion"
    chunk_object = "text_completion"
    opening = b""

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

    def text(self, index: int, text: str, scores: bytes) -> bytes:
        """See answer.Format."""
        return b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":null}' % (index, _encode(text), scores)

    def finish(self, piece: Piece) -> bytes:
        """See answer.Format."""
        end = (piece.index, _encode(piece.finish), _encode(piece.stop_reason))
        return b'{"index":%d,"text":"","logprobs":null,"finish_reason":%b,"stop_reason":%b}' % end

    def scores(self, piece: Piece, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """See answer.Format."""
        scores = completion_scores(tokens, piece.offset)
        piece.offset += sum(len(token.text) for token in tokens)
        return scores

    def choice(self, piece: Piece) -> dict[str, Any]:
        """See answer.Format."""
        return {
            "index": piece.index,
            "text": "".join(piece.texts),
            "logprobs": None if piece.logprobs is None else self.scores(piece, piece.logprobs),
            "finish_reason": piece.finish,
            "stop_reason": piece.stop_reason,
        }

    def add_prompt_scores(self, answer: dict[str, Any], scores: Sequence[object]) -> None:
        """See answer.Format."""
        for choice, own in zip(answer["choices"], scores, strict=True):
            choice["prompt_logprobs"] = own
