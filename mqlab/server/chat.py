"""The shapes of /v1/chat/completions."""

from __future__ import annotations

from typing import Any

import msgspec

from mqlab.front.prompts import Prompt
from mqlab.server.answer import Piece
from mqlab.server.protocol import ChatBody

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

    def text(self, index: int, text: str) -> bytes:
        """See answer.Format."""
        return b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}' % (index, _encode(text))

    def finish(self, piece: Piece) -> bytes:
        """See answer.Format."""
        end = (piece.index, _encode(piece.finish), _encode(piece.stop_reason))
        return b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b,"stop_reason":%b}' % end

    def choice(self, piece: Piece) -> dict[str, Any]:
        """See answer.Format."""
        return {
            "index": piece.index,
            "message": {"role": "assistant", "content": "".join(piece.texts), "refusal": None},
            "logprobs": None,
            "finish_reason": piece.finish,
            "stop_reason": piece.stop_reason,
        }
