"""A server whose engine's model comes and goes: 503 with a code meanwhile, and the names follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from serving import serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TALK = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("put_away", ["unload", "sleep"])
async def test_requests_are_refused_with_a_code(model_folder: Path, put_away: str) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        await getattr(served.client, put_away)()
        bodies: list[tuple[str, dict[str, Any]]] = [(COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": TALK})]
        for path, body in bodies:
            for extra in ({}, {"stream": True}, {"model": "echo"}):
                refused = await client.post(path, json={**body, **extra})
                error = refused.json()["error"]
                assert (refused.status_code, error["code"], error["type"]) == (503, "model_unavailable", "service_unavailable_error")
                assert "send the request again" in error["message"]
        assert (await client.get("/v1/models")).json()["data"] == []
        assert (await client.get("/v1/models/echo")).status_code == 503
        assert (await client.get("/health")).status_code == 200, "the engine is well"
        assert "mqlab:num_requests_running" in (await client.get("/metrics")).text


async def test_the_names_follow_the_model(model_folder: Path) -> None:
    async with serving(model_folder) as served, served.openai() as client, httpx.AsyncClient(base_url=served.url) as plain:
        await served.client.load("second", path=str(model_folder))
        assert [model.id async for model in client.models.list()] == ["second"]
        answer = await client.completions.create(model="second", prompt="Hello", max_tokens=1)
        assert (answer.model, answer.choices[0].text) == ("second", "Hello")
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="echo", prompt="Hello")
        page = (await plain.get("/metrics")).text
    assert 'model_name="second"' in page
    assert 'model_name="echo"' not in page


async def test_a_stream_of_the_old_model_ends_with_an_error_event(model_folder: Path) -> None:
    async with serving(model_folder, device_time=0.005) as served, httpx.AsyncClient(base_url=served.url) as client:
        body = {"prompt": "Hello", "max_tokens": 5000, "stream": True, "ignore_eos": True}
        async with client.stream("POST", COMPLETIONS, json=body) as response:
            lines = response.aiter_lines()
            first = await anext(lines)
            await served.client.unload()
            events = [line async for line in lines if line]
    assert "choices" in json.loads(first.removeprefix("data: "))
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "model_unavailable"


async def test_prefix_cache_and_speculation_are_on_the_page(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        page = (await client.get("/metrics")).text
    for name in ("prefix_cache_queries", "prefix_cache_hits", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"):
        assert f'mqlab:{name}_total{{engine="0",model_name="echo"}} 0.0' in page
