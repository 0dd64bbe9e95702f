"""Chat messages as callers write them become plain data that any template can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mqlab.errors import InvalidRequest
from mqlab.params import shown

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
    """Messages without null fields, with each content as one string, and with the arguments of calls as objects, as templates want them.

    An assistant's message may have no content: it then says its refusal, if there is one, or nothing.

    Raises:
        InvalidRequest: none at all, or one without a role or content, or content that is not text, or calls that are none; names its
            position.
    """
    talk = plain(messages, "messages")
    if not isinstance(talk, list | tuple) or not talk:
        raise InvalidRequest(f"messages={shown(messages)} must be a list of at least one message")
    plain_talk = [_plain_message(i, message) for i, message in enumerate(talk)]
    _name_results(plain_talk)
    return plain_talk


def _name_results(talk: list[dict[str, Any]]) -> None:
    """OpenAI's results of tools name the call by its id, some templates (Hermes) want the function's name."""
    names: dict[object, str] = {}
    for message in talk:
        for call in message.get("tool_calls", ()):
            if isinstance(call.get("id"), str):
                names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and isinstance(asked := message.get("tool_call_id"), str) and asked in names:
            message.setdefault("name", names[asked])


def _dump(value: Any) -> Any:
    """Message objects of API clients (pydantic) know how to become data."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump()
    raise TypeError(f"{type(value).__name__} is not data")


def _plain_message(position: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InvalidRequest(f"messages[{position}]={shown(message)} must be an object with a role and content")
    given = {key: value for key, value in message.items() if value is not None}
    if "function_call" in given:
        raise InvalidRequest(f"messages[{position}].function_call is an older spelling that is not read; send tool_calls")
    if calls := _calls(position, given.pop("tool_calls", ())):
        given["tool_calls"] = calls
    if "content" in given:
        given["content"] = _text(position, given["content"])
    elif given["role"] == "assistant":
        given["content"] = _text(position, given.get("refusal", ""))
    else:
        raise InvalidRequest(f"messages[{position}]={shown(message)} has no content")
    return given


def _text(position: int, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidRequest(f"messages[{position}].content={shown(content)} must be a string or a list of text parts")
    return "\n".join(_part(position, part) for part in content)


def _part(position: int, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(kind) if kind in ("text", "refusal") else None
    if not isinstance(text, str):
        raise InvalidRequest(
            f"messages[{position}].content holds {shown(part)}; only text parts {{'type': 'text', 'text': …}} are read: "
            "this server's models see no images, audio or files"
        )
    return text


def _calls(position: int, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise InvalidRequest(f"messages[{position}].tool_calls={shown(calls)} must be a list of calls")
    return [_call(f"messages[{position}].tool_calls[{number}]", call) for number, call in enumerate(calls)]


def _call(place: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{place}={shown(call)} must be an object whose function has a name and arguments")
    return {**call, "function": {**function, "arguments": _arguments(place, function.get("arguments"))}}


def _arguments(place: str, given: Any) -> dict[str, Any]:
    """OpenAI has them as a string of JSON, templates as an object."""
    try:
        found = msgspec.json.decode(given) if isinstance(given, str) and given.strip() else given or {}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest(f"{place}.function.arguments={shown(given)} must be a JSON object, as text")
    return found
