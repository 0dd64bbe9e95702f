"""The shapes of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mqlab.front.prompts import Prompt
from mqlab.server.answer import Piece
from mqlab.server.protocol import ChatBody
from mqlab.server.scores import chat_scores
from mqlab.types import Output

_encode = msgspec.json.encode
_OPENING = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'


class ChatPiece(Piece):
    """One message of the assistant."""

    __slots__ = ()

    def choice(self) -> dict[str, Any]:
        """See Piece.choice."""
        return {
            "index": self.index,
            "message": {"role": "assistant", "content": "".join(self.texts), "refusal": None},
            "logprobs": None if self.logprobs is None else chat_scores(self.logprobs),
            "finish_reason": self.finish,
            "stop_reason": self.stop_reason,
        }

    def events(self, output: Output) -> list[bytes]:
        """See Piece.events; the role goes first."""
        events = [] if self.opened else [_OPENING % self.index]
        self.opened = True
        if output.text or output.logprobs:
            scores = _encode(chat_scores(output.logprobs)) if output.logprobs else b"null"
            parts = (self.index, _encode(output.text), scores)
            events.append(b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null}' % parts)
        if output.finish is not None:
            self.end(output)
            end = (self.index, _encode(self.finish), _encode(self.stop_reason))
            events.append(b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b,"stop_reason":%b}' % end)
        return events


class Chat:
    """See answer.Format."""

    prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def prompts(self, body: ChatBody) -> list[Prompt]:
        """The conversation is one prompt."""
        return [body.messages]

    def piece(self, body: ChatBody, index: int) -> Piece:
        """See answer.Format."""
        del body
        return ChatPiece(index)

    def add_prompt_scores(self, answer: dict[str, Any], scores: Sequence[object]) -> None:
        """See answer.Format."""
        answer["prompt_logprobs"] = scores[0]
