"""The shape of streams: every key where clients look for it, one end per choice, usage only when asked for."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import serving

from mqlab.contract.waiting import until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TALK = [{"role": "user", "content": "hi"}]


async def events(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, whose end marker is checked."""
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        blocks = (b"".join([part async for part in response.aiter_raw()])).decode().split("\n\n")
    assert blocks.pop() == ""
    assert blocks.pop() == "data: [DONE]"
    assert all(block.startswith("data: ") for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def check_shape(stream: list[dict[str, Any]], choices: int, name: str) -> dict[int, str]:
    """Check all rules; the finish of each choice."""
    assert len({(event["id"], event["created"], event["model"], event["object"]) for event in stream}) == 1
    assert stream[0]["object"] == name
    finishes: dict[int, str] = {}
    for event in stream:
        (choice,) = event["choices"]
        index = choice["index"]
        assert index not in finishes, "nothing follows the end of a choice"
        if choice["finish_reason"] is not None:
            finishes[index] = choice["finish_reason"]
            assert not (choice.get("text") or choice.get("delta")), "text and end come apart"
    assert sorted(finishes) == list(range(choices))
    return finishes


async def test_fifty_streams_under_load_keep_their_shape(model_folder: Path) -> None:
    kinds: list[tuple[dict[str, Any], str]] = [
        ({"prompt": "Hello world, this is a text", "max_tokens": 9}, "length"),
        ({"prompt": "Hello world, this is", "max_tokens": 90, "stop": [", th"]}, "stop"),
        ({"prompt": [9, 8, 7, 2], "max_tokens": 90}, "stop"),
        ({"prompt": "ab cd", "n": 3, "max_tokens": 5}, "length"),
        ({"prompt": ["ab cd", "ef"], "n": 2, "max_tokens": 5}, "length"),
    ]
    async with serving(model_folder, max_num_seqs=16) as served, httpx.AsyncClient(base_url=served.url, timeout=30) as client:
        bodies = [kinds[i % len(kinds)] for i in range(50)]
        streams = await asyncio.gather(*(events(client, COMPLETIONS, body) for body, _ in bodies))
    for (body, finish), stream in zip(bodies, streams, strict=True):
        choices = body.get("n", 1) * (2 if isinstance(body["prompt"][0], str) and isinstance(body["prompt"], list) else 1)
        assert set(check_shape(stream, choices, "text_completion").values()) == {finish}
    assert len({stream[0]["id"] for stream in streams}) == 50


async def test_the_first_event_of_a_chat_choice_has_the_role(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        stream = await events(client, CHAT, {"messages": TALK, "n": 2, "max_tokens": 6})
    check_shape(stream, 2, "chat.completion.chunk")
    by_choice = defaultdict(list)
    for event in stream:
        by_choice[event["choices"][0]["index"]].append(event["choices"][0]["delta"])
    assert [deltas[0] for deltas in by_choice.values()] == [{"role": "assistant", "content": ""}] * 2
    assert not any("role" in delta for deltas in by_choice.values() for delta in deltas[1:])
    assert [deltas[-1] for deltas in by_choice.values()] == [{}, {}]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_usage_is_not_sent_unasked(model_folder: Path, options: dict[str, Any] | None) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        stream = await events(client, COMPLETIONS, {"prompt": "Hello", "max_tokens": 3, "stream_options": options})
    check_shape(stream, 1, "text_completion")
    assert not any(event.get("usage") for event in stream)


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, {"prompt": ["ab", "cd ef"], "n": 2}), (CHAT, {"messages": TALK})])
async def test_usage_is_one_last_event_without_choices(model_folder: Path, path: str, body: dict[str, Any]) -> None:
    body = {**body, "max_tokens": 3}
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        *stream, last = await events(client, path, {**body, "stream_options": {"include_usage": True}})
        whole = (await client.post(path, json=body)).json()
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert all(event["usage"] is None for event in stream)
    check_shape(stream, len(whole["choices"]), stream[0]["object"])


async def test_streamed_text_is_whole_characters(model_folder: Path) -> None:
    text = "naïve 🙂🙂 日本語 – ok"
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        count = len(await served.state.front.encode(text))
        stream = await events(client, COMPLETIONS, {"prompt": text, "max_tokens": count})
    pieces = [event["choices"][0]["text"] for event in stream]
    assert "".join(pieces) == text
    assert "�" not in "".join(pieces)
    assert len(pieces) > 5


async def test_a_reader_that_pauses_gets_the_same_text(model_folder: Path) -> None:
    """Far more than the buffers hold, read only when the engine has finished."""
    body = {"prompt": "Hello world", "max_tokens": 8000, "stream": True}
    async with (
        serving(model_folder) as served,
        httpx.AsyncClient(base_url=served.url, timeout=30) as client,
        client.stream("POST", COMPLETIONS, json=body) as response,
    ):
        await until(lambda: served.stats.generation_tokens == 8000, timeout=20)
        blocks = b"".join([part async for part in response.aiter_raw()]).decode().split("\n\n")
    stream = [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]
    check_shape(stream, 1, "text_completion")
    assert "".join(event["choices"][0]["text"] for event in stream) == "Hello world" * 4000
