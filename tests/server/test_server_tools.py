"""Tools in chats, by OpenAI's own client, over a core that answers with a given text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from engines import client_of
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from scripted import END, letters, scripted
from serving import served_by
from small_model import write_small_model

from mqlab.text.tokenizer import Tokenizer
from mqlab.topologies import TOPOLOGIES

TALK: list[Any] = [{"role": "user", "content": "What is the weather in Brno?"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    for name in ("weather", "time")
]
CALLS = """Let me see.
<tool_call>
{"name": "weather", "arguments": {"city": "Brno \\"}{ \\u00e9 \U0001f642", "days": 3}}
</tool_call>
<tool_call>
{"name": "time", "arguments": {}}
</tool_call>"""

CITY = {"type": "object", "properties": {"city": {"enum": ["Brno", "Praha"]}}, "required": ["city"], "additionalProperties": False}
STRICT: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    return write_small_model(tmp_path_factory.mktemp("small"), model_folder)


def told(call: Any) -> tuple[str, str]:
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert call.id.startswith("call_")
    return call.function.name, call.function.arguments


async def test_one_call_at_a_time(model_folder: Path) -> None:
    async with scripted(model_folder, letters(model_folder, CALLS)) as served, served.openai() as client:
        whole = await client.chat.completions.create(model="echo", messages=TALK, tools=TOOLS, parallel_tool_calls=False)
        none = await client.chat.completions.create(model="echo", messages=TALK, tools=TOOLS, tool_choice="none")
        plain = await client.chat.completions.create(model="echo", messages=TALK)
    assert [told(call)[0] for call in whole.choices[0].message.tool_calls or []] == ["weather"]
    assert whole.choices[0].finish_reason == "tool_calls"
    for answer in (none, plain):
        assert answer.choices[0].message.content == CALLS
        assert answer.choices[0].message.tool_calls is None
        assert answer.choices[0].finish_reason == "stop"
    assert none.usage is not None and plain.usage is not None and whole.usage is not None
    assert whole.usage.prompt_tokens > none.usage.prompt_tokens == plain.usage.prompt_tokens, "what may not be called is not told of"


async def test_only_some_tools_are_told_of(model_folder: Path) -> None:
    some: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "time"}}]}}
    asked: list[Any] = [(TOOLS, some), (TOOLS[1:], "auto"), (TOOLS, "auto")]
    async with scripted(model_folder, letters(model_folder, "Hi")) as served, served.openai() as client:
        answers = [
            await client.chat.completions.create(model="echo", messages=TALK, tools=tools, tool_choice=choice) for tools, choice in asked
        ]
    first, second, third = [answer.usage.prompt_tokens for answer in answers if answer.usage is not None]
    assert first == second < third


async def test_only_calls_leave_the_content_null(model_folder: Path) -> None:
    script = letters(model_folder, CALLS.partition("\n")[2])
    async with scripted(model_folder, script) as served, served.openai() as client:
        answer = await client.chat.completions.create(model="echo", messages=TALK, tools=TOOLS, n=2, logprobs=True)
    for choice in answer.choices:
        assert choice.message.content is None
        assert [told(call)[0] for call in choice.message.tool_calls or []] == ["weather", "time"]
        assert choice.logprobs is not None and len(choice.logprobs.content or []) == len(script)
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls or []]
    assert len(set(ids)) == 4


async def test_every_tokens_logprobs_are_streamed(model_folder: Path) -> None:
    script = letters(model_folder, CALLS)
    async with scripted(model_folder, script) as served, served.openai() as client:
        stream = await client.chat.completions.create(model="echo", messages=TALK, tools=TOOLS, logprobs=True, stream=True)
        scores = [chunk.choices[0].logprobs async for chunk in stream]
    assert sum(len(one.content or []) for one in scores if one) == len(script)


LLAMA = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools | tojson }} '<|python_tag|>' {{ messages[0].tool_calls }}"
)
QWEN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools | tojson }} <tool_call>"
OTHER = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools | tojson }} [TOOL_CALLS]"


@pytest.mark.parametrize(
    ("template", "parser", "answer", "calls"),
    [
        (LLAMA, "auto", '{"name": "weather", "parameters": {}}; {"name": "time", "parameters": {"a": 1}}', ["weather", "time"]),
        (LLAMA, "hermes", '<tool_call>{"name": "weather", "arguments": {}}', ["weather"]),
        (QWEN, "auto", '<tool_call>{"name": "weather", "arguments": {}}', ["weather"]),
        (QWEN, "llama3_json", '{"name": "time", "parameters": {}}', ["time"]),
        (OTHER, "hermes", '<tool_call>{"name": "time", "arguments": {}}', ["time"]),
    ],
)
async def test_the_template_says_how_calls_are_written(
    model_folder: Path, tmp_path: Path, template: str, parser: str, answer: str, calls: list[str]
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(template)
    settings = {"chat_template": str(file), "tool_call_parser": parser}
    async with scripted(model_folder, letters(model_folder, answer), server=settings) as served, served.openai() as client:
        got = await client.chat.completions.create(model="echo", messages=TALK, tools=TOOLS)
    assert [told(call)[0] for call in got.choices[0].message.tool_calls or []] == calls


async def test_marks_that_are_special_tokens_are_seen(model_folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        tokenizer = json.loads((model_folder / name).read_text())
        for token in tokenizer.get("added_tokens", ()):
            token["content"] = "<tool_call>" if token["content"] == "<reponame>" else token["content"]
        vocabulary = tokenizer.get("model", {}).get("vocab", {})
        if "<reponame>" in vocabulary:
            vocabulary["<tool_call>"] = vocabulary.pop("<reponame>")
        (tmp_path / name).write_text(json.dumps(tokenizer))
    found = Tokenizer.load(tmp_path)
    text = 'Yes <|im_start|><tool_call>{"name": "time", "arguments": {"a": "b"}}'
    script = [*found.encode(text, False), END]
    assert {found.encode("<tool_call>", False)[0]} <= found.special_ids
    async with scripted(tmp_path, script) as served, served.openai() as client:
        answer = await client.chat.completions.create(model="echo", messages=TALK, tools=TOOLS)
        plain = await client.chat.completions.create(model="echo", messages=TALK)
    assert answer.choices[0].message.content == "Yes"
    assert [told(call) for call in answer.choices[0].message.tool_calls or []] == [("time", '{"a": "b"}')]
    assert plain.choices[0].message.content == 'Yes {"name": "time", "arguments": {"a": "b"}}'


@pytest.mark.full
@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_a_forced_call_over_every_layout(small: Path, topology: str) -> None:
    async with served_by(client_of(small, topology)) as served, served.openai() as client:
        asked: Any = {
            "model": served.state.model,
            "messages": TALK,
            "tools": STRICT,
            "tool_choice": "required",
            "seed": 1,
            "max_tokens": 60,
        }
        asked |= {"parallel_tool_calls": False}
        whole = (await client.chat.completions.create(**asked)).choices[0]
        chunks = [chunk.choices[0] async for chunk in await client.chat.completions.create(stream=True, **asked)]
    (call,) = whole.message.tool_calls or []
    assert told(call)[0] == "weather" and json.loads(told(call)[1])["city"] in ("Brno", "Praha")
    parts = [part.function for chunk in chunks for part in chunk.delta.tool_calls or []]
    assert "".join(part.arguments or "" for part in parts if part) == told(call)[1]
    assert chunks[-1].finish_reason == whole.finish_reason == "tool_calls"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tool_choice": "required"}, "tool_choice", "only allowed with tools"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": TOOLS}, "tool_choice", "'x', which is not among tools"),
    ({"tool_choice": "any", "tools": TOOLS}, "tool_choice", "any"),
    ({"tool_choice": {"type": "allowed_tools"}, "tools": TOOLS}, "tool_choice", "allowed_tools"),
    ({"tool_choice": {"type": "custom"}, "tools": TOOLS}, "tool_choice", "custom"),
    ({"tools": [*TOOLS, TOOLS[0]]}, "tools", "several functions named 'weather'"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools", "custom"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools", ""),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools", "parameters"),
    ({"tools": TOOLS * 65}, "tools", "128"),
    ({"tools": TOOLS, "guided_regex": "a"}, "guided_regex", "no way to call its tools"),
    ({"functions": [{"name": "f"}]}, "functions", "send tools"),
    ({"function_call": "auto"}, "function_call", "send tool_choice"),
]


async def test_what_cannot_be_had_is_refused(model_folder: Path) -> None:
    async with scripted(model_folder, [5, END]) as served, httpx.AsyncClient(base_url=served.url) as client:
        for fields, param, words in REFUSED:
            response = await client.post("/v1/chat/completions", json={"messages": TALK, "max_tokens": 1, **fields})
            assert response.status_code == 400, response.text
            error = response.json()["error"]
            assert error["param"] == param, error
            assert words in error["message"]


@pytest.mark.parametrize(("template", "parser"), [(OTHER, "auto"), (QWEN, "none"), (None, "none")])
async def test_a_server_that_reads_no_calls_says_so(model_folder: Path, tmp_path: Path, template: str | None, parser: str) -> None:
    settings: dict[str, Any] = {"tool_call_parser": parser}
    if template:
        (tmp_path / "template.jinja").write_text(template)
        settings["chat_template"] = str(tmp_path / "template.jinja")
    async with scripted(model_folder, [5, END], server=settings) as served, served.openai() as client:
        with pytest.raises(openai.BadRequestError, match="tool-call-parser") as refused:
            await client.chat.completions.create(model="echo", messages=TALK, tools=TOOLS)
    assert refused.value.param == "tools"
