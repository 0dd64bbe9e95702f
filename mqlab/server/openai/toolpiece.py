"""A message of the assistant that may call tools, whole or streamed."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

from mqlab.server.openai.chatpiece import ChatPiece
from mqlab.text.toolcalls import CallParser, CallPart, Part
from mqlab.types import Output

_encode = msgspec.json.encode


class ToolPiece(ChatPiece):
    """One message; what its text says and calls is told apart as it comes.

    Args:
        parser: of this message alone.
    """

    __slots__ = ("_parser",)

    def __init__(self, index: int, parser: CallParser) -> None:
        super().__init__(index)
        self._parser = parser

    def frame(self) -> None:
        """See Piece.frame: any text may turn out to be a call."""

    def message(self) -> dict[str, Any]:
        """See ChatPiece.message; the content is null where there are only calls."""
        parts = self._parser.push("".join(self.texts)) + self._parser.end()
        words = "".join(part for part in parts if isinstance(part, str))
        calls = _whole_calls(part for part in parts if isinstance(part, CallPart))
        own = {"role": "assistant", "content": words or (None if calls else ""), "refusal": None}
        return {**own, "tool_calls": calls} if calls else own

    def reason(self) -> str | None:
        """See ChatPiece.reason; an answer that ends with calls, and not for its length, ends because of them."""
        return "tool_calls" if self.finish == "stop" and self._parser.calls else self.finish

    def deltas(self, output: Output) -> list[bytes]:
        """See ChatPiece.deltas."""
        parts = self._parser.push(output.text)
        if output.finish is not None:
            parts += self._parser.end()
        deltas = [_encode(_delta(part)) for part in parts]
        return deltas or ([b"{}"] if output.logprobs else [])


def _delta(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"content": part}
    if part.name is None:
        return {"tool_calls": [{"index": part.index, "function": {"arguments": part.arguments}}]}
    return {"tool_calls": [{"index": part.index, **_call(part.name, part.arguments)}]}


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _whole_calls(parts: Iterable[CallPart]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for part in parts:
        if part.name is not None:
            calls.append(_call(part.name, part.arguments))
        else:
            calls[-1]["function"]["arguments"] += part.arguments
    return calls
