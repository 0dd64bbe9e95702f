"""How a chat is printed, as the body and the server's settings say, and which of OpenAI's fields have an effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import echo_command, running, serving

from mqlab.errors import ConfigError
from mqlab.text.chat import read_template

CHAT = "/v1/chat/completions"
TALK: list[Any] = [{"role": "user", "content": "hi"}]
OPEN: list[Any] = [*TALK, {"role": "assistant", "content": "Well, I"}]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% for d in documents or [] %}[{{ d.text }}]{% endfor %}"
    "{{ mood | default('calm') }}{{ reasoning_effort | default('') }}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def template(tmp_path: Path) -> str:
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    return str(tmp_path / "template.jinja")


async def prompt_of(client: httpx.AsyncClient, messages: list[Any], **fields: Any) -> str:
    """The prompt, which the engine echoes."""
    body = {"messages": messages, "max_tokens": 99, "ignore_eos": True, "skip_special_tokens": False, **fields}
    usage = (await client.post(CHAT, json=body)).json()["usage"]
    response = await client.post(CHAT, json={**body, "max_tokens": usage["prompt_tokens"]})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


async def test_a_turn_is_opened_or_left_open_or_neither(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        opened = await prompt_of(client, OPEN)
        neither = await prompt_of(client, OPEN, add_generation_prompt=False)
        for both in ({}, {"add_generation_prompt": False}):
            assert await prompt_of(client, OPEN, continue_final_message=True, **both) == neither.removesuffix("<|im_end|>\n")
        wrong = await client.post(CHAT, json={"messages": OPEN, "continue_final_message": True, "add_generation_prompt": True})
    assert neither.endswith("Well, I<|im_end|>\n")
    assert opened == neither + "<|im_start|>assistant\n"
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "continue_final_message")


async def test_a_template_of_the_servers_own(model_folder: Path, template: str) -> None:
    async with serving(model_folder, server={"chat_template": template}) as served, httpx.AsyncClient(base_url=served.url) as client:
        assert await prompt_of(client, TALK) == "<user>hicalm<assistant>"
        more: dict[str, Any] = {"documents": [{"text": "d"}], "chat_template_kwargs": {"mood": "gay"}, "reasoning_effort": "low"}
        assert await prompt_of(client, TALK, **more) == "<user>hi[d]gaylow<assistant>"
        tokens = (await client.post("/tokenize", json={"messages": TALK})).json()["tokens"]
        assert (await client.post("/detokenize", json={"tokens": tokens})).json()["prompt"] == "<user>hicalm<assistant>"
        await served.client.load("echo", path=str(model_folder))
        assert await prompt_of(client, TALK) == "<user>hicalm<assistant>", "whatever model is loaded"


@pytest.mark.parametrize(("source", "words"), [(None, "No such file"), ("{% if %}", "Expected an expression"), (b"\xff", "utf-8")])
def test_a_file_that_is_no_template(tmp_path: Path, source: str | bytes | None, words: str) -> None:
    file = tmp_path / "template.jinja"
    if source is not None:
        file.write_bytes(source if isinstance(source, bytes) else source.encode())
    with pytest.raises(ConfigError, match=words):
        read_template(str(file))


@pytest.mark.full
def test_a_server_without_its_template_does_not_start(model_folder: Path, tmp_path: Path) -> None:
    settings = {"chat_template": str(tmp_path / "none.jinja")}
    with running(echo_command(model_folder, settings=settings), tmp_path) as process:
        assert process.popen.wait(30) != 0
        assert "chat_template=" in process.text()


IGNORED: list[dict[str, Any]] = [
    {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "safety_identifier": "x", "prompt_cache_key": "y"},
    {"prediction": {"type": "content", "content": "x"}, "modalities": ["text"], "verbosity": "medium", "reasoning_effort": "none"},
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "functions": None, "logprobs": False, "response_format": None},
    {"an_unknown_field": 1, "documents": [], "chat_template_kwargs": {"enable_thinking": False}, "chat_template": None},
    {"max_completion_tokens": 1, "max_tokens": 2, "seed": 5, "logit_bias": {"5": 1}, "stop": ["x"], "n": 2, "stream": False},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"store": True}, "store"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"verbosity": "low"}, "verbosity"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"documents": [{"text": "d"}]}, "documents"),
    ({"documents": ["d"]}, "documents"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": "yes", "schema": {}}}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x" * 65, "schema": {}}}}, "response_format"),
    ({"guided_choice": []}, "guided_choice"),
]


async def test_fields_without_effect_are_refused_where_it_would_be_missed(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        for fields in IGNORED:
            response = await client.post(CHAT, json={"messages": TALK, "max_tokens": 1, **fields})
            assert response.status_code == 200, (fields, response.text)
        for fields, param in REFUSED:
            response = await client.post(CHAT, json={"messages": TALK, "max_tokens": 1, **fields})
            assert (response.status_code, response.json()["error"]["param"]) == (400, param), (fields, response.text)
