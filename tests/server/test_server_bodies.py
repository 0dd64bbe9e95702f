"""Bad bodies: each is told what is wrong with it, in OpenAI's envelope; the server goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from serving import Served, serving

from mqlab.server.openai.protocol import ChatBody, CompletionBody

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TALK = [{"role": "user", "content": "hi"}]

# Fields beside a good prompt, and which of them is to blame.
BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n"),
    ({"n": 10**6}, "n"),
    ({"n": "2"}, "n"),
    ({"n": 1.5}, "n"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": [1]}, "top_k"),
    ({"seed": 2**64}, "seed"),
    ({"seed": "x"}, "seed"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": {}}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    ({"stop": 7}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a", 1]}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"stop_token_ids": "1"}, "stop_token_ids"),
    ({"ignore_eos": "yes"}, "ignore_eos"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options"),
    ({"model": 5}, "model"),
    ({"logprobs": "x"}, "logprobs"),
    ({"logprobs": 1.5}, "logprobs"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": -1}, "top_logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"prompt_logprobs": -2}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"": 1}}, "logit_bias"),
    ({"logit_bias": {"1.5": 1}}, "logit_bias"),
    ({"logit_bias": {"007": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 30: 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"5": "x"}}, "logit_bias"),
    ({"logit_bias": {"5": None}}, "logit_bias"),
    ({"logit_bias": [5]}, "logit_bias"),
    ({"frequency_penalty": 2.5}, "frequency_penalty"),
    ({"presence_penalty": "x"}, "presence_penalty"),
    ({"presence_penalty": -2.1}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"min_p": 1.5}, "min_p"),
    ({"min_p": -0.1}, "min_p"),
    ({"bad_words": [""]}, "bad_words"),
    ({"bad_words": "x"}, "bad_words"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": ["x"]}, "allowed_token_ids"),
    ({"response_format": {"type": "nonsense"}}, "response_format"),
    ({"response_format": 3}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}}, "response_format"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_regex"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ({"guided_choice": "a"}, "guided_choice"),
    ({"priority": "high"}, "priority"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"echo": 1}, "echo"),
    ({"tools": [{"type": "function"}]}, "tools"),
]
BEYOND_THE_VOCABULARY: list[tuple[dict[str, Any], str]] = [
    ({"logit_bias": {"49152": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 1, "999999999999": 1}}, "logit_bias"),
    ({"allowed_token_ids": [5, 49152]}, "allowed_token_ids"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
]
"""Token ids that only the engine knows to be wrong."""
BAD_PROMPTS: list[Any] = ["", [], [[]], [""], ["x", ""], ["x", 1], [1, [2]], 5, {"a": 1}, [10**9], [-1], [True], [1.5], None]
BAD_MESSAGES: list[Any] = [
    [],
    "hi",
    [1],
    [{}],
    [{"role": "user"}],
    [{"role": 1, "content": "x"}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    None,
]
BAD_BYTES: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"\xff\xfe",
    b'{"prompt":"\xff"}',
    b'{"prompt":"a","temperature":NaN}',
    b"[" * 9999,
]


def problems(response: httpx.Response, status: int, param: str | None) -> list[str]:
    """What is wrong with a refusal."""
    error = response.json().get("error", {})
    found = []
    if response.status_code != status:
        found.append(f"status {response.status_code}, not {status}")
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        found.append(f"envelope {response.text}")
    elif error["param"] != param:
        found.append(f"param {error['param']!r}, not {param!r}: {error['message']}")
    if "Traceback" in response.text or ".py" in response.text:
        found.append(f"inner text {response.text}")
    return found


async def refusals(served: Served, cases: list[tuple[str, Any, str | None]]) -> list[str]:
    """The cases that are not refused as they should be."""
    wrong = []
    async with httpx.AsyncClient(base_url=served.url, timeout=20) as client:
        for path, body, param in cases:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            response = await client.post(path, content=content)
            wrong += [f"{path} {content[:100]!r}: {problem}" for problem in problems(response, 400, param)]
        good = await client.post(COMPLETIONS, json={"prompt": "Hello", "max_tokens": 2})
        assert good.json()["choices"][0]["text"] == "HelloHello"
    return wrong


async def test_bad_fields(model_folder: Path) -> None:
    async with serving(model_folder) as served:
        bad = BAD_FIELDS + BEYOND_THE_VOCABULARY
        completions = [(COMPLETIONS, {"prompt": "x", **body}, param) for body, param in bad]
        chats = [(CHAT, {"messages": TALK, **body}, param) for body, param in bad]
        assert not await refusals(served, completions + chats)
        assert (await served.client.stats()).finished.get("error", 0) == served.state.metrics.finished["error"] == 0


async def test_bad_prompts_and_messages(model_folder: Path) -> None:
    prompts = [(COMPLETIONS, {"prompt": prompt, "stream": stream}, "prompt") for prompt in BAD_PROMPTS for stream in (False, True)]
    messages = [(CHAT, {"messages": talk, "stream": stream}, "messages") for talk in BAD_MESSAGES for stream in (False, True)]
    missing = [(COMPLETIONS, {}, "prompt"), (CHAT, {}, "messages")]
    async with serving(model_folder) as served:
        assert not await refusals(served, prompts + messages + missing)


async def test_what_is_no_json_object(model_folder: Path) -> None:
    async with serving(model_folder) as served:
        assert not await refusals(served, [(path, body, None) for path in (COMPLETIONS, CHAT) for body in BAD_BYTES])


async def test_a_prompt_that_cannot_fit_names_true_numbers(model_folder: Path) -> None:
    async with serving(model_folder, max_model_len=64) as served, httpx.AsyncClient(base_url=served.url) as client:
        fits = await client.post(COMPLETIONS, json={"prompt": [5] * 63, "max_tokens": 9})
        full = await client.post(COMPLETIONS, json={"prompt": [5] * 64})
        huge = await client.post(COMPLETIONS, json={"prompt": "word " * 1_600_000})
    assert fits.json()["choices"][0]["finish_reason"] == "length"
    assert fits.json()["usage"]["total_tokens"] == 64
    for refused in (full, huge):
        assert not problems(refused, 400, "prompt")
        assert "at most 63" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "kind", "prompt"), [(COMPLETIONS, CompletionBody, {"prompt": "Hello"}), (CHAT, ChatBody, {"messages": TALK})]
)
async def test_null_is_the_same_as_absent(model_folder: Path, path: str, kind: type[msgspec.Struct], prompt: dict[str, Any]) -> None:
    optional = [name for name in kind.__struct_fields__ if name not in prompt]
    body = {**prompt, "max_tokens": 3, "logprobs": None, "response_format": None, "unknown_field": 1, "user": "me"}
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        plain = await client.post(path, json={**prompt, "max_tokens": 3})
        nulls = await client.post(path, json={**dict.fromkeys(optional), **body, "stream_options": None})
    assert nulls.status_code == 200, nulls.text
    assert nulls.json()["choices"] == plain.json()["choices"]


async def test_values_that_ask_for_nothing_are_taken(model_folder: Path) -> None:
    neutral = {
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "tools": [],
        "top_k": -1,
    }
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        chat = await client.post(CHAT, json={"messages": TALK, "max_tokens": 2, "logprobs": False, **neutral})
        completion = await client.post(COMPLETIONS, json={"prompt": "x", "echo": False, "best_of": 1, "suffix": "", **neutral})
    assert (chat.status_code, completion.status_code) == (200, 200)


async def test_wrong_methods_and_paths(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        for path in (COMPLETIONS, CHAT):
            refused = await client.get(path)
            assert not problems(refused, 405, None)
            assert refused.headers["allow"] == "POST"
        assert not problems(await client.post("/v1/models"), 405, None)
        assert not problems(await client.post("/v1/nothing", json={}), 404, None)
        assert not problems(await client.post(COMPLETIONS, json={"model": "other", "prompt": "x"}), 404, "model")
