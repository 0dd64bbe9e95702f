"""/tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from serving import serving

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
TALK = [{"role": "user", "content": "Say hi"}]


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_there_and_back(model_folder: Path) -> None:
    text = "naïve 🙂 日本語 <|im_end|>"
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        found = await post(client, "/tokenize", model="echo", prompt=text, return_token_strs=True)
        ids = await served.state.front.encode(text)
        assert found["tokens"] == ids
        assert (found["count"], found["max_model_len"]) == (len(ids), 8192)
        assert len(found["token_strs"]) == len(ids)
        assert found["token_strs"][-1] == "<|im_end|>"
        assert await post(client, "/detokenize", tokens=ids) == {"prompt": text}
        assert (await post(client, "/tokenize", prompt="a"))["token_strs"] is None
        assert (await post(client, "/tokenize", prompt=""))["tokens"] == []
        assert await post(client, "/detokenize", tokens=[]) == {"prompt": ""}


async def test_a_chat_is_what_the_chat_route_makes_of_it(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        found = await post(client, "/tokenize", messages=TALK)
        for more in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}, {"continue_final_message": True}):
            answer = await post(client, "/v1/chat/completions", messages=TALK, max_tokens=1, **more)
            assert (await post(client, "/tokenize", messages=TALK, **more))["count"] == answer["usage"]["prompt_tokens"], more
        closed = await post(client, "/tokenize", messages=TALK, add_generation_prompt=False)
        open_end = await post(client, "/tokenize", messages=TALK, add_generation_prompt=False, continue_final_message=True)
    assert found["tokens"][: closed["count"]] == closed["tokens"]
    assert closed["tokens"][: open_end["count"]] == open_end["tokens"]
    assert found["count"] > closed["count"] > open_end["count"]


async def test_a_huge_text_is_counted_while_health_answers(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        counting = asyncio.create_task(post(client, "/tokenize", prompt="word " * 150_000))
        answered = 0
        while not counting.done():
            assert (await client.get("/health")).status_code == 200
            answered += 1
        assert (await counting)["count"] >= 150_000, "far beyond the context"
    assert answered > 3


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": TALK}, "messages"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {"prompt": "a" * (2**20 + 1)}, "prompt"),
    ("/tokenize", {"messages": [{"role": "user", "content": "a" * 2**20}]}, "messages"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/tokenize", {"messages": [{}]}, "messages"),
    ("/tokenize", {"messages": TALK, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ("/tokenize", {"messages": TALK, "tools": [{}]}, "tools"),
    ("/tokenize", {"messages": TALK, "chat_template": "x"}, "chat_template"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [5] * (2**20 + 1)}, "tokens"),
    ("/detokenize", {"tokens": [1, -1]}, "tokens"),
    ("/detokenize", {"tokens": [49152]}, "tokens"),
    ("/detokenize", {"tokens": [2**70]}, "tokens"),
]


async def test_refusals_name_the_field(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        for path, body, param in REFUSED:
            answer = await client.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
            assert (await client.post(path, json={**body, "model": "other"})).status_code == 404
