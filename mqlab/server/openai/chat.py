"""/v1/chat/completions: how a body becomes a conversation, with or without tools, and the answer a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mqlab.config import ToolParser
from mqlab.errors import InvalidRequest
from mqlab.front.prompts import ChatPrompt
from mqlab.front.textmodel import TextModel
from mqlab.server.errors import bad_request
from mqlab.server.openai.answer import Plan
from mqlab.server.openai.chatpiece import ChatPiece
from mqlab.server.openai.protocol import ChatBody
from mqlab.server.openai.shapes import respelled
from mqlab.server.openai.toolpiece import ToolPiece
from mqlab.server.openai.tools import ToolUse, tool_use
from mqlab.text.toolcalls import CallParser

_OWN_FIELDS = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "reasoning_effort")


class Chat:
    """See answer.Format.

    Args:
        parser: how the model writes calls of tools.
    """

    prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, parser: ToolParser = "auto") -> None:
        self._parser: ToolParser = parser

    def plan(self, body: ChatBody, text: TextModel) -> Plan:
        """See answer.Format."""
        params = body.params()
        try:
            use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls, text, self._parser, params)
        except InvalidRequest as error:
            raise respelled(error, body.constraint) from error
        prompt = ChatPrompt(body.messages, _options(body, use, text))
        if use is None:
            return Plan([prompt], params, ChatPiece, body.constraint)
        return Plan([prompt], use.params(params), _pieces(use), "tools")

    def add_prompt_scores(self, answer: dict[str, Any], scores: Sequence[object]) -> None:
        """See answer.Format."""
        answer["prompt_logprobs"] = scores[0]


def _pieces(use: ToolUse) -> Any:
    return lambda index: ToolPiece(index, CallParser(use.form, use.most, use.hidden or ()))


def _options(body: ChatBody, use: ToolUse | None, text: TextModel) -> dict[str, Any]:
    """Of ChatTemplate.render."""
    opened = not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt
    if opened and body.continue_final_message:
        raise bad_request(
            "add_generation_prompt and continue_final_message exclude each other; leave the first one out", "continue_final_message"
        )
    options: dict[str, Any] = {"add_generation_prompt": opened, "continue_final_message": body.continue_final_message}
    options |= _variables(body, text, use is not None)
    if use is not None:
        options["tools"] = [tool.described() for tool in use.tools]
    return options


def _variables(body: ChatBody, text: TextModel, with_tools: bool) -> dict[str, Any]:
    """What the body gives to the template itself."""
    variables = dict(body.chat_template_kwargs)
    if own := next((name for name in _OWN_FIELDS if name in variables), None):
        raise bad_request(f"chat_template_kwargs holds {own!r}, which has a field of its own; send that", "chat_template_kwargs")
    if body.documents:
        variables["documents"] = body.documents
    if body.reasoning_effort not in (None, "none"):
        if "reasoning_effort" not in text.chat.traits(with_tools).variables:
            message = f"reasoning_effort={body.reasoning_effort!r:.80} has no effect on this model, which does not reason; leave it out"
            raise bad_request(message, "reasoning_effort", "unsupported_parameter")
        variables["reasoning_effort"] = body.reasoning_effort
    return variables
