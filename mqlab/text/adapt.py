"""Conversations with tools for templates that know of none: said in plain words, the way that Hermes models are told.

A template that knows tools gets them, calls and results as they are, and prints them the way its model was trained to read them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mqlab.errors import InvalidRequest
from mqlab.text.traits import Traits

ROLES = ("system", "developer", "user", "assistant", "tool")
"""OpenAI's. Source: its API reference."""

Talk = list[dict[str, Any]]

_PREAMBLE = """You can call these tools, each of which is described by a JSON schema:
<tools>
{tools}
</tools>
To call one, answer with a JSON object in <tool_call></tool_call> tags:
<tool_call>
{{"name": "the tool's name", "arguments": {{"an argument's name": "its value"}}}}
</tool_call>
Several calls follow one another, each in tags of its own. You are then told what they returned in <tool_response></tool_response> tags."""


def adapted(talk: Talk, tools: Sequence[Any] | None, traits: Traits) -> Talk:
    """A conversation as a template can print it; what it cannot do with tools is said in words.

    Args:
        talk: plain messages; not changed.
        tools: JSON schemas of functions.

    Raises:
        InvalidRequest: a role that neither OpenAI nor the template knows.
    """
    for place, message in enumerate(talk):
        _check_role(place, message["role"], traits)
    if not traits.names("developer"):
        talk = [{**message, "role": "system"} if message["role"] == "developer" else message for message in talk]
    if not traits.knows_calls:
        talk = _in_words(talk)
    return _with_preamble(talk, tools) if tools and not traits.knows_tools else talk


def _check_role(place: int, role: str, traits: Traits) -> None:
    if role not in ROLES and not traits.names(role):
        raise InvalidRequest(f"messages[{place}].role={role!r:.80} must be one of {', '.join(ROLES)}")


def _in_words(talk: Talk) -> Talk:
    """Calls as the assistant's words; results, those that follow one another together, as the user's."""
    words: Talk = []
    results = False
    for message in talk:
        if message["role"] == "tool":
            told = f"<tool_response>\n{message['content']}\n</tool_response>"
            if results:
                words[-1]["content"] += f"\n{told}"
            else:
                words.append({"role": "user", "content": told})
        else:
            words.append(_spoken(message))
        results = message["role"] == "tool"
    return words


def _spoken(message: dict[str, Any]) -> dict[str, Any]:
    """A message without calls but in its words."""
    calls = [f"<tool_call>\n{_json(call['function'])}\n</tool_call>" for call in message.get("tool_calls", ())]
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**others, "content": "\n".join(filter(None, [message.get("content", ""), *calls]))} if calls else message


def _with_preamble(talk: Talk, tools: Sequence[Any]) -> Talk:
    told = _PREAMBLE.format(tools="\n".join(map(_json, tools)))
    if talk[0]["role"] == "system":
        return [{**talk[0], "content": f"{talk[0]['content']}\n\n{told}"}, *talk[1:]]
    return [{"role": "system", "content": told}, *talk]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
