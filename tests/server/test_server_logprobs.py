"""Logprobs, echo and prompt logprobs over HTTP, in the shapes that OpenAI's client and evaluation harnesses read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from serving import serving

HALF = math.log(0.5)
TALK: list[Any] = [{"role": "user", "content": "Say 🙂 hi"}]
HELLO = "Hello 🙂 world, this"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


async def streamed(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream."""
    response = await client.post(path, json={**body, "stream": True})
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert (response.status_code, lines[-1]) == (200, "[DONE]"), response.text
    return [json.loads(line) for line in lines[:-1]]


def joined(choices: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The logprobs of one choice's parts, as one; each token begins where it says."""
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    scores = {name: [value for part in parts for value in part[name]] for name in names}
    tokens = scores["tokens"]
    assert scores["text_offset"] == [sum(map(len, tokens[:i])) for i in range(len(tokens))]
    assert {len(values) for values in scores.values()} == {len(tokens)}
    return scores


@pytest.mark.parametrize("top", [None, 0, 3, 20])
async def test_a_chats_logprobs(model_folder: Path, top: int | None) -> None:
    body = {"messages": TALK, "max_tokens": 12, "logprobs": True, "ignore_eos": True}
    if top is not None:
        body["top_logprobs"] = top
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        whole = ChatCompletion.model_validate((await client.post(CHAT, json=body)).json(), strict=True)
        chunks = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in await streamed(client, CHAT, body)]
    (choice,) = whole.choices
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert whole.usage is not None
    assert len(content) == whole.usage.completion_tokens == 12
    for token in content:
        assert token.logprob == pytest.approx(HALF)
        assert len(token.top_logprobs) == (top or 0)
        assert not top or (token.top_logprobs[0].token, token.top_logprobs[0].bytes) == (token.token, token.bytes)
    parts = [one.choices[0].logprobs for one in chunks if one.choices[0].logprobs]
    assert [token for part in parts for token in part.content or []] == content


async def test_the_bytes_of_a_chats_tokens_are_its_text(model_folder: Path) -> None:
    body = {"messages": TALK, "max_tokens": 40, "logprobs": True, "ignore_eos": True, "skip_special_tokens": False}
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        choice = (await client.post(CHAT, json=body)).json()["choices"][0]
    raw = b"".join(bytes(token["bytes"]) for token in choice["logprobs"]["content"])
    assert raw.decode() == choice["message"]["content"]
    assert "🙂" in raw.decode() and "<|im_start|>" in raw.decode()


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_completions_logprobs(model_folder: Path, count: int, stream: bool) -> None:
    body = {"prompt": HELLO, "max_tokens": 20, "logprobs": count, "stop": "this"}
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        answers = await streamed(client, COMPLETIONS, body) if stream else [(await client.post(COMPLETIONS, json=body)).json()]
    assert Completion.model_validate(answers[-1], strict=True)
    choices = [answer["choices"][0] for answer in answers]
    scores = joined(choices)
    assert "".join(choice["text"] for choice in choices) == HELLO.removesuffix("this")
    assert "".join(scores["tokens"]) == HELLO, "the token that completes the stop string is the last one"
    assert scores["token_logprobs"] == pytest.approx([HALF] * len(scores["tokens"]))
    rows = zip(scores["top_logprobs"], scores["tokens"], scores["token_logprobs"], strict=True)
    assert all(top[token] == value for top, token, value in rows if token), "the token itself is among the likeliest"
    assert {len(top) for top in scores["top_logprobs"]} == {max(1, count)}


@pytest.mark.parametrize("logprobs", [0, 1, 5])
@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("as_ids", [False, True])
async def test_a_scored_prompt(model_folder: Path, logprobs: int, max_tokens: int, as_ids: bool) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        ids = await served.state.front.encode(HELLO)
        body = {"prompt": ids if as_ids else HELLO, "echo": True, "max_tokens": max_tokens, "logprobs": logprobs}
        answer = (await client.post(COMPLETIONS, json=body)).json()
        parts = [chunk["choices"][0] for chunk in await streamed(client, COMPLETIONS, body)]
    (choice,) = answer["choices"]
    scores = joined([choice])
    count = len(ids) + max_tokens
    assert choice["text"] == "".join(scores["tokens"]) == HELLO + "Hello" * max_tokens
    assert scores["token_logprobs"][0] is scores["top_logprobs"][0] is None
    assert scores["token_logprobs"][1:] == pytest.approx([HALF] * (count - 1))
    assert {len(top) for top in scores["top_logprobs"][1:]} == {max(1, logprobs)}
    wanted = {"prompt_tokens": len(ids), "completion_tokens": max_tokens, "total_tokens": count}
    assert answer["usage"] == {**wanted, "prompt_tokens_details": {"cached_tokens": 0}}
    assert "".join(part["text"] for part in parts) == choice["text"]
    assert joined(parts) == scores


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
async def test_an_echo_for_every_choice_of_every_prompt(model_folder: Path, logprobs: int | None, stream: bool) -> None:
    prompts = ["one two", "three 🙂", "four"]
    body = {"prompt": prompts, "n": 2, "echo": True, "max_tokens": 3, "logprobs": logprobs}
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        if stream:
            parts = [chunk["choices"][0] for chunk in await streamed(client, COMPLETIONS, body)]
        else:
            parts = (await client.post(COMPLETIONS, json=body)).json()["choices"]
    for index in range(6):
        own = [part for part in parts if part["index"] == index]
        text = "".join(part["text"] for part in own)
        assert text.startswith(prompts[index // 2])
        assert len(text) > len(prompts[index // 2])
        assert "".join(joined(own)["tokens"]) == ("" if logprobs is None else text)


async def test_vllms_prompt_logprobs(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        ids = await served.state.front.encode(HELLO)
        body = {"prompt": [HELLO, "hi"], "n": 2, "max_tokens": 1, "prompt_logprobs": 1}
        choices = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        chat = (await client.post(CHAT, json={"messages": TALK, "max_tokens": 1, "prompt_logprobs": 0})).json()
        mixed = await client.post(COMPLETIONS, json={"prompt": HELLO, "prompt_logprobs": 0, "echo": True, "logprobs": 2, "max_tokens": 0})
    first, *others = choices[0]["prompt_logprobs"]
    assert first is None
    assert [list(one) for one in others] == [[str(id)] for id in ids[1:]]
    assert others[0][str(ids[1])]["rank"] == 1
    assert others[0][str(ids[1])]["logprob"] == pytest.approx(HALF)
    assert choices[1]["prompt_logprobs"] == choices[0]["prompt_logprobs"]
    assert choices[2]["prompt_logprobs"] == [None]
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in chat["choices"][0]
    (choice,) = mixed.json()["choices"]
    assert [len(one) for one in choice["prompt_logprobs"][1:]] == [1] * (len(ids) - 1)
    assert [len(one) for one in choice["logprobs"]["top_logprobs"][1:]] == [2] * (len(ids) - 1)


async def test_what_json_has_no_word_for(model_folder: Path) -> None:
    """The whole vocabulary, whose least likely token has probability zero in all but name."""
    async with serving(model_folder, vocab_size=49152) as served, httpx.AsyncClient(base_url=served.url) as client:
        answer = await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1, "logprobs": -1})
    (top,) = answer.json()["choices"][0]["logprobs"]["top_logprobs"]
    assert min(top.values()) == -9999.0


async def test_old_and_new_shapes_are_not_mixed(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        number = await client.post(CHAT, json={"messages": TALK, "logprobs": 1})
        truth = await client.post(COMPLETIONS, json={"prompt": "x", "logprobs": True})
        chat_echo = await client.post(CHAT, json={"messages": TALK, "echo": True})
        alone = await client.post(CHAT, json={"messages": TALK, "top_logprobs": 0})
        top = await client.post(COMPLETIONS, json={"prompt": "x", "logprobs": 1, "top_logprobs": 2})
    refused = [number, truth, chat_echo, alone, top]
    assert [one.status_code for one in refused] == [400] * 5
    assert [one.json()["error"]["param"] for one in refused] == ["logprobs", "logprobs", "echo", "top_logprobs", "top_logprobs"]
