"""Chats as OpenAI's clients send them.

C73: content in parts, for each role, and what is no text. C83: logprobs in the shape of chats. C87: answers in JSON, cut and uncut.
C88: calls of tools, streamed and cut at each character.
"""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from engines import client_of
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageFunctionToolCall
from pydantic import BaseModel, Field
from scripted import letters, scripted
from serving import Served, served_by, serving

CHAT = "/v1/chat/completions"
TALK: list[Any] = [{"role": "user", "content": "What is the weather in Brno?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Brno", "Praha"]}, "days": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": SCHEMA}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "time"}},
]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
ROLES = ["system", "developer", "user", "assistant", "tool"]


def in_parts(talk: list[dict[str, Any]], split: bool) -> list[dict[str, Any]]:
    """The same with each content as one text part, or as one for each of its lines."""
    return [{**one, "content": [{"type": "text", "text": text} for text in one["content"].split("\n" if split else "\0")]} for one in talk]


async def test_c73_parts_are_the_same_prompt_as_strings(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        for role in ROLES:
            asks = [{"role": "assistant", "content": "x", "tool_calls": [CALL]}] if role == "tool" else []
            talk = [TALK[0], *asks, {"role": role, "content": "one\ntwo\nthree"}, {"role": "user", "content": "and\nthen"}]
            bodies = [
                {"messages": one, "max_tokens": 150, "ignore_eos": True} for one in (talk, in_parts(talk, False), in_parts(talk, True))
            ]
            answers = [(await client.post(CHAT, json=body)).json() for body in bodies]
            assert "one\ntwo\nthree" in answers[0]["choices"][0]["message"]["content"]
            for answer in answers[1:]:
                assert (answer["choices"], answer["usage"]) == (answers[0]["choices"], answers[0]["usage"])


ACCEPTED: list[list[dict[str, Any]]] = [
    [*TALK, {"role": "assistant", "content": None}, *TALK],
    [*TALK, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c", "content": "5"}],
    [*TALK, {"role": "assistant", "content": None, "refusal": "No."}, *TALK],
    [*TALK, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, *TALK],
    [*TALK, *TALK],
    [{"role": "user", "content": "hi", "name": "Ann"}],
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"role": "user", "content": None}, "has no content"),
    ({"role": "user"}, "has no content"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}, "no images"),
    ({"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "input_audio", "input_audio": {}}]}, "audio"),
    ({"role": "user", "content": [{"type": "text"}]}, "only text parts"),
    ({"role": "user", "content": {"type": "text", "text": "x"}}, "string or a list"),
    ({"role": "wizard", "content": "hi"}, "messages[1].role='wizard' must be one of system, developer, user, assistant, tool"),
    ({"role": "function", "name": "f", "content": "hi"}, "must be one of"),
    ({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}, "send tool_calls"),
    ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[1].tool_calls[0]"),
    ({"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{oops"}}]}, "must be a JSON object"),
]


async def test_c73_what_is_no_text_is_refused_and_nothing_else(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        for talk in ACCEPTED:
            response = await client.post(CHAT, json={"messages": talk, "max_tokens": 1})
            assert response.status_code == 200, (talk, response.text)
        for message, words in REFUSED:
            response = await client.post(CHAT, json={"messages": [*TALK, message], "max_tokens": 1})
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, "messages"), error
            assert words in error["message"], error


@pytest.mark.parametrize(
    ("fields", "param"), [({"top_logprobs": 21, "logprobs": True}, "top_logprobs"), ({"top_logprobs": 3}, "top_logprobs")]
)
async def test_c83_what_has_no_shape_is_refused(model_folder: Path, fields: dict[str, Any], param: str) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        response = await client.post(CHAT, json={"messages": TALK, "max_tokens": 1, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_c83_logprobs_of_a_chat(small: Path) -> None:
    async with served_by(client_of(small, "aio")) as served, httpx.AsyncClient(base_url=served.url) as client:
        for top in (None, 0, 3, 20):
            body = {"messages": TALK, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": True, "top_logprobs": top}
            whole = ChatCompletion.model_validate((await client.post(CHAT, json=body)).json(), strict=True)
            stream = (await client.post(CHAT, json={**body, "stream": True})).text.split("\n\n")
            chunks = [ChatCompletionChunk.model_validate_json(line.removeprefix("data: ")) for line in stream[:-2]]
            (choice,) = whole.choices
            assert whole.usage is not None and choice.logprobs is not None
            tokens = choice.logprobs.content or []
            assert len(tokens) == whole.usage.completion_tokens == 6
            for token in tokens:
                assert token.logprob < 0 and bytes(token.bytes or []).decode(errors="replace")
                assert len(token.top_logprobs) == (top or 0)
                assert not top or token.top_logprobs[0].token == token.token, "greedy: the likeliest is the one that was chosen"
            parts = [part for chunk in chunks for part in (chunk.choices[0].logprobs.content or [] if chunk.choices[0].logprobs else [])]
            assert [part.token for part in parts] == [token.token for token in tokens]
            assert [part.logprob for part in parts] == pytest.approx([token.logprob for token in tokens], abs=1e-4)


def check_white_space(text: str) -> None:
    """One space at most between the tokens of JSON."""
    assert not re.search(r"\s\s|[\n\t]", re.sub(r'"(\\.|[^"\\])*"?', "0", text)), text


async def test_c87_json_is_whole_or_says_that_it_was_cut(small: Path) -> None:
    async with served_by(client_of(small, "aio")) as served, served.openai() as client:

        async def ask(form: Any, limit: int, seed: int) -> str | None:
            answer = await client.chat.completions.create(
                model=served.state.model, messages=TALK, max_tokens=limit, seed=seed, response_format=form
            )
            (choice,), usage = answer.choices, answer.usage
            assert choice.message.content is not None and usage is not None
            check_white_space(choice.message.content)
            if choice.finish_reason == "stop":
                found = json.loads(choice.message.content)
                assert isinstance(found, dict)
                assert form["type"] == "json_object" or (
                    found["city"] in ("Brno", "Praha") and 0 <= found["days"] <= 99 and len(found) == 2
                )
            else:
                assert (choice.finish_reason, usage.completion_tokens) == ("length", limit)
            return choice.finish_reason

        forms = [{"type": "json_object"}, AS_SCHEMA]
        finishes = {(form["type"], limit): await ask(form, limit, 1) for form in forms for limit in (2, 60, 300)}
        assert finishes["json_schema", 2] == "length"
        assert finishes["json_schema", 300] == "stop"
        plain = client.chat.completions.create(model=served.state.model, messages=TALK, max_tokens=100, extra_body={"ignore_eos": True})
        beside, _ = await asyncio.gather(plain, asyncio.gather(*(ask(AS_SCHEMA, 60, seed) for seed in range(5))))
        assert beside.usage is not None and beside.usage.completion_tokens == 100


BAD_SCHEMAS: list[tuple[Any, str]] = [
    ({"type": "nonsense"}, "nonsense"),
    ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}, "required": ["a"]}, ""),
    ({"enum": ["x" * 30 + str(number) for number in range(10_000)]}, "at most 262144"),
    ({"type": "string", "pattern": "(a|b"}, ""),
    ({"type": "string", "pattern": "a" * 20_000}, "at most 16384"),
]


async def test_c87_a_schema_that_cannot_be_followed_is_blamed(small: Path) -> None:
    async with served_by(client_of(small, "aio")) as served, httpx.AsyncClient(base_url=served.url) as client:
        for schema, words in BAD_SCHEMAS:
            for stream in (False, True):
                form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
                response = await client.post(CHAT, json={"messages": TALK, "max_tokens": 9, "stream": stream, "response_format": form})
                error = response.json()["error"]
                assert (response.status_code, error["param"]) == (400, "response_format"), error
                assert words in error["message"] and "structured_outputs" not in error["message"]
            if len(json.dumps(schema)) > 400:
                continue  # longer than the prompt may be
            tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
            response = await client.post(CHAT, json={"messages": TALK, "max_tokens": 9, "tools": tools, "tool_choice": "required"})
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, "tools"), error


class Weather(BaseModel):
    """Of a city."""

    city: Literal["Brno", "Praha"]
    days: int = Field(ge=0, le=99)


async def test_c87_pydantic_models_come_back(small: Path) -> None:
    def ask(served: Served) -> tuple[Any, ...]:
        tools: Any = [openai.pydantic_function_tool(Weather)]
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            parse = partial(client.chat.completions.parse, model=served.state.model, messages=TALK, max_tokens=100, seed=1)
            answers = (
                parse(response_format=Weather),
                parse(tools=tools, tool_choice="required", parallel_tool_calls=False),
                parse(tools=tools, response_format=Weather, parallel_tool_calls=False),
            )
        return tuple(answer.choices[0].message for answer in answers)

    async with served_by(client_of(small, "aio")) as served, served.openai() as client:
        answer, call, either = await asyncio.to_thread(ask, served)
        tools: Any = [openai.pydantic_function_tool(Weather)]
        asked: Any = {"model": served.state.model, "messages": TALK, "max_tokens": 100, "seed": 1, "parallel_tool_calls": False}
        async with client.chat.completions.stream(tools=tools, tool_choice="required", **asked) as stream:
            events = [event async for event in stream]
            final = (await stream.get_final_completion()).choices[0].message
    assert [event.type for event in events if event.type.endswith("done")] == ["tool_calls.function.arguments.done"]
    assert final.tool_calls and final.tool_calls[0].function.parsed_arguments == call.tool_calls[0].function.parsed_arguments
    assert isinstance(answer.parsed, Weather)
    assert isinstance(call.tool_calls[0].function.parsed_arguments, Weather)
    assert isinstance(either.tool_calls[0].function.parsed_arguments if either.tool_calls else either.parsed, Weather)


CALLS = """Let me see.
<tool_call>
{"name": "weather", "arguments": {"city": "Brno \\"}{ \\u00e9 🙂", "days": 3}}
</tool_call>
<tool_call>
{"name": "time", "arguments": {}}
</tool_call>"""
ARGUMENTS = ['{"city": "Brno \\"}{ \\u00e9 🙂", "days": 3}', "{}"]


def told(call: Any) -> tuple[str, str]:
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert call.id.startswith("call_")
    return call.function.name, call.function.arguments


def joined(chunks: list[ChatCompletionChunk]) -> list[tuple[str, str]]:
    """The calls of a stream; whose ids, types and names are told once."""
    calls: list[list[str]] = []
    for part in (part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []):
        assert part.function is not None
        if part.index == len(calls):
            assert part.type == "function" and part.id and part.function.name
            calls.append([part.function.name, ""])
        else:
            assert part.index == len(calls) - 1
            assert part.id is part.type is part.function.name is None
        calls[-1][1] += part.function.arguments or ""
    return [(name, arguments) for name, arguments in calls]


async def test_c88_calls_streamed_letter_by_letter_are_those_of_the_whole(model_folder: Path) -> None:
    async with scripted(model_folder, letters(model_folder, CALLS)) as served, served.openai() as client:
        for limit in (None, 5, 15, 34, 45, 60, 100, 130):
            asked: Any = {"model": "echo", "messages": TALK, "tools": TOOLS, "max_completion_tokens": limit or openai.omit}
            whole = (await client.chat.completions.create(**asked)).choices[0]
            chunks = [chunk async for chunk in await client.chat.completions.create(stream=True, **asked)]
            calls = joined(chunks)
            assert calls == [told(call) for call in whole.message.tool_calls or []]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == (whole.message.content or "")
            assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == [whole.finish_reason]
            assert whole.finish_reason == ("length" if limit else "tool_calls")
            if limit is None:
                assert whole.message.content == "Let me see."
                assert calls == list(zip(["weather", "time"], ARGUMENTS, strict=True))
            elif limit == 60:
                assert calls == [("weather", ARGUMENTS[0][: len(calls[0][1])])] and calls[0][1]


NAMED = {"type": "function", "function": {"name": "weather"}}


async def test_c88_a_forced_call_is_one_that_the_tool_takes(small: Path) -> None:
    async with served_by(client_of(small, "aio")) as served, served.openai() as client:
        strict: Any = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
        free = await client.chat.completions.create(model=served.state.model, messages=TALK, tools=strict, max_tokens=5)
        assert free.choices[0].message.content, "words are free under auto, even beside strict tools"
        for choice, parallel in [("required", True), ("required", False), (NAMED, True)]:
            asked: Any = {"model": served.state.model, "messages": TALK, "tools": TOOLS, "max_tokens": 150, "seed": 1}
            asked |= {"tool_choice": choice, "parallel_tool_calls": parallel}
            whole = (await client.chat.completions.create(**asked)).choices[0]
            chunks = [chunk async for chunk in await client.chat.completions.create(stream=True, **asked)]
            (call,) = [told(call) for call in whole.message.tool_calls or []]
            assert joined(chunks) == [call]
            assert whole.message.content is None
            assert whole.finish_reason == chunks[-1].choices[0].finish_reason == "tool_calls"
            name, found = call[0], json.loads(call[1])
            assert name == "weather" or choice == "required"
            assert found == {} if name == "time" else (found["city"] in ("Brno", "Praha") and 0 <= found["days"] <= 99)


@pytest.mark.full
async def test_c88_the_default_model_calls_the_right_tool(model_folder: Path) -> None:
    """Its template knows no tools: they are put before the conversation in words, and so is what a tool returned."""
    talk: list[Any] = [{"role": "user", "content": "What is the weather in Brno, for 3 days?"}]
    async with served_by(client_of(model_folder, "aio")) as served, served.openai() as client:
        asked: Any = {"model": served.state.model, "tools": TOOLS, "tool_choice": "required", "temperature": 0, "max_tokens": 60}
        first = (await client.chat.completions.create(messages=talk, parallel_tool_calls=False, **asked)).choices[0]
        (call,) = first.message.tool_calls or []
        talk += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 25 degrees."}]
        asked |= {"tool_choice": "auto"}
        second = (await client.chat.completions.create(messages=talk, **asked)).choices[0]
    assert (told(call)[0], json.loads(told(call)[1])["city"], first.finish_reason) == ("weather", "Brno", "tool_calls")
    assert "sunny" in (second.message.content or "").lower()
