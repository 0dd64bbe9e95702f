"""Chat messages as callers write them become plain data that any template can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mqlab.errors import InvalidRequest

Message = Mapping[str, Any]


def plain(value: Any, name: str) -> Any:
    """Dicts, lists, strings and numbers only: a foreign template must not reach into objects.

    Raises:
        InvalidRequest: ``value`` holds something that is not data.
    """
    try:
        return msgspec.to_builtins(value, enc_hook=_dump)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} must be plain data: {error}") from error


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages without null fields, with each content as one string.

    Raises:
        InvalidRequest: none at all, or one without a role or content, or content that is not text; names its position.
    """
    talk = plain(messages, "messages")
    if not isinstance(talk, list | tuple) or not talk:
        raise InvalidRequest(f"messages={messages!r} must be a list of at least one message")
    return [_plain_message(i, message) for i, message in enumerate(talk)]


def _dump(value: Any) -> Any:
    """Message objects of API clients (pydantic) know how to become data."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump()
    raise TypeError(f"{type(value).__name__} is not data")


def _plain_message(position: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InvalidRequest(f"messages[{position}]={message!r} must be an object with a role and content")
    given = {key: value for key, value in message.items() if value is not None}
    if "content" in given:
        given["content"] = _text(position, given["content"])
    elif "tool_calls" not in given:
        raise InvalidRequest(f"messages[{position}]={message!r} has no content")
    return given


def _text(position: int, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidRequest(f"messages[{position}].content={content!r} must be a string or a list of text parts")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(f"messages[{position}].content holds {part!r}; only text parts {{'type': 'text', 'text': …}} are read")
    return "\n".join(part["text"] for part in content)
