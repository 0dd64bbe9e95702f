"""A message of the assistant, whole or streamed."""

from __future__ import annotations

from typing import Any

import msgspec

from mqlab.server.openai.answer import Piece
from mqlab.server.openai.scores import chat_scores
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
            "message": self.message(),
            "logprobs": None if self.logprobs is None else chat_scores(self.logprobs),
            "finish_reason": self.reason(),
            "stop_reason": self.stop_reason,
        }

    def events(self, output: Output) -> list[bytes]:
        """See Piece.events; the role goes first. The first delta of an output has the logprobs of all its tokens."""
        events = [] if self.opened else [_OPENING % self.index]
        self.opened = True
        scores = _encode(chat_scores(output.logprobs)) if output.logprobs else b"null"
        for delta in self.deltas(output):
            events.append(b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null}' % (self.index, delta, scores))
            scores = b"null"
        if output.finish is not None:
            self.end(output)
            end = (self.index, _encode(self.reason()), _encode(self.stop_reason))
            events.append(b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b,"stop_reason":%b}' % end)
        return events

    def frame(self) -> tuple[bytes, bytes] | None:
        """See Piece.frame."""
        return (b'{"index":%d,"delta":{"content":"' % self.index, b'"},"logprobs":null,"finish_reason":null}') if self.opened else None

    def message(self) -> dict[str, Any]:
        """The whole message."""
        return {"role": "assistant", "content": "".join(self.texts), "refusal": None}

    def reason(self) -> str | None:
        """OpenAI's finish_reason; None so far."""
        return self.finish

    def deltas(self, output: Output) -> list[bytes]:
        """What the message gained, as deltas of a stream, each JSON; at least one where there are logprobs."""
        return [b'{"content":%b}' % _encode(output.text)] if output.text or output.logprobs else []
