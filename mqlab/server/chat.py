"""The shapes of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mqlab.front.prompts import Prompt
from mqlab.server.answer import Piece
from mqlab.server.protocol import ChatBody
from mqlab.server.scores import chat_scores
from mqlab.types import TokenLogprob

_encode = msgspec.json.encode


class Chat:
    """See answer.Format."""

    prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    opening = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'

    def prompts(self, body: ChatBody) -> list[Prompt]:
        """The conversation is one prompt."""
        return [body.messages]

    def text(self, index: int, text: str, scores: bytes) -> bytes:
        """See answer.Format."""
        return b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null}' % (index, _encode(text), scores)

    def finish(self, piece: Piece) -> bytes:
        """See answer.Format."""
        end = (piece.index, _encode(piece.finish), _encode(piece.stop_reason))
        return b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b,"stop_reason":%b}' % end

    def scores(self, piece: Piece, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """See answer.Format."""
        return chat_scores(tokens)

    def choice(self, piece: Piece) -> dict[str, Any]:
        """See answer.Format."""
        return {
            "index": piece.index,
            "message": {"role": "assistant", "content": "".join(piece.texts), "refusal": None},
            "logprobs": None if piece.logprobs is None else self.scores(piece, piece.logprobs),
            "finish_reason": piece.finish,
            "stop_reason": piece.stop_reason,
        }

    def add_prompt_scores(self, answer: dict[str, Any], scores: Sequence[object]) -> None:
        """See answer.Format."""
        answer["prompt_logprobs"] = scores[0]
