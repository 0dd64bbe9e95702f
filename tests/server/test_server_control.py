"""The routes that steer the engine, and what they are without --enable-control."""

from __future__ import annotations

import asyncio
import pstats
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Served, serving

from mqlab.config import ServerConfig
from mqlab.server.operate.openapi import document
from mqlab.server.operate.operations import OPERATIONS

CONTROL = [(one.method.upper(), one.path) for one in OPERATIONS if one.control]


@asynccontextmanager
async def steered(model_folder: Path, topology: str = "aio", **core: Any) -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
    async with (
        serving(model_folder, topology, server={"enable_control": True}, **core) as served,
        httpx.AsyncClient(base_url=served.url, timeout=20) as client,
    ):
        yield served, client


async def complete(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 2, **body})


async def test_without_the_flag_they_are_not_there(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        for method, path in CONTROL:
            for way in {method, "GET", "POST"}:
                answer = await client.request(way, path)
                assert answer.status_code == 404
                assert "--enable-control" in answer.json()["error"]["message"]
        assert not document(served.state.config)["paths"].keys() & {path for _, path in CONTROL}
        assert (await complete(client)).status_code == 200


async def test_sleep_and_wake_up(model_folder: Path) -> None:
    async with steered(model_folder) as (_, client):
        for level in ("", "?level=2"):
            freed = (await client.post(f"/sleep{level}")).json()
            assert freed.keys() == {"rss_before", "rss_after"}
            assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
            assert (await complete(client)).status_code == 503
            assert (await client.post("/wake_up")).json()["id"] == "echo"
            assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}
            assert (await complete(client)).json()["choices"][0]["text"] == "HelloHello"


async def test_another_model_is_loaded_and_everything_follows(model_folder: Path) -> None:
    async with steered(model_folder, "v1") as (_, client):
        first = (await client.get("/v1/models")).json()["data"]
        assert (await client.post("/v1/model/unload", json={})).status_code == 200
        assert (await client.get("/v1/models")).json()["data"] == []
        options = {"path": str(model_folder), "max_model_len": 512}
        loaded = await client.post("/v1/model/load", json={"model": "org/second", "options": options})
        assert loaded.status_code == 200, loaded.text
        (second,) = (await client.get("/v1/models")).json()["data"]
        assert second == loaded.json() == (await client.get("/v1/models/org/second")).json()
        assert (first[0]["id"], second["id"], second["max_model_len"]) == ("echo", "org/second", 512)
        assert second["created"] >= first[0]["created"]
        assert (await complete(client, model="org/second")).json()["model"] == "org/second"
        assert (await complete(client, model="echo")).status_code == 404
        assert (await client.post("/tokenize", json={"prompt": "Hello"})).json()["max_model_len"] == 512
        assert 'model_name="org/second"' in (await client.get("/metrics")).text


async def test_health_answers_while_a_model_is_loaded(model_folder: Path) -> None:
    async with steered(model_folder, "v1") as (_, client):
        body = {"model": "slow", "options": {"path": str(model_folder), "load_time": 1.0}}
        loading = asyncio.create_task(client.post("/v1/model/load", json=body))
        seen = set()
        while not loading.done():
            seen |= {(await client.get("/health")).status_code, (await client.get("/ready")).json()["reason"]}
        assert (await loading).status_code == 200
    assert {200, "loading"} <= seen
    assert 503 not in seen


async def test_a_profile_of_the_engine_lies_in_the_cache(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQLAB_CACHE", str(tmp_path))
    async with steered(model_folder, "v1") as (_, client):
        begun = await client.post("/start_profile")
        again = await client.post("/start_profile", json={"kind": "cprofile"})
        assert (await complete(client)).status_code == 200
        ended = await client.post("/stop_profile")
        over = await client.post("/stop_profile")
    path = Path(begun.json()["path"])
    assert ended.json() == begun.json()
    assert path.is_relative_to(tmp_path)
    assert any("engine" in str(place) for place in pstats.Stats(str(path)).stats)  # type: ignore[attr-defined]
    for refused, words in ((again, "already"), (over, "start_profile first")):
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "call_refused")
        assert words in refused.json()["error"]["message"]


async def test_the_prefix_cache_is_reset(model_folder: Path) -> None:
    async with steered(model_folder) as (_, client):
        assert (await client.post("/reset_prefix_cache")).json() == {"reset": True}


REFUSED: list[tuple[str, Any, str | None]] = [
    ("/v1/model/load", {}, "model"),
    ("/v1/model/load", {"model": 5}, "model"),
    ("/v1/model/load", {"model": "x", "options": {"nonsense": 1}}, None),
    ("/v1/model/load", {"model": "x", "options": {"path": "/no/such/folder"}}, None),
    ("/v1/model/load", {"model": "x", "options": {"model": "y", "self": 1}}, None),
    ("/v1/model/load", {"model": "x", "options": []}, "options"),
    ("/sleep?level=3", None, "level"),
    ("/sleep?level=", None, "level"),
    ("/wake_up?tags=weights", None, "tags"),
    ("/start_profile", {"kind": "gprof"}, "kind"),
    ("/start_profile", {"max_iterations": 5}, "max_iterations"),
]


async def test_what_cannot_be_done_is_refused_and_the_model_stays(model_folder: Path) -> None:
    async with steered(model_folder) as (_, client):
        for path, body, param in REFUSED:
            answer = await client.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (path, body, answer.text)
            assert "Traceback" not in answer.text
        assert (await client.get("/sleep")).status_code == 405
        assert (await complete(client)).status_code == 200
        assert await served_model(client) == "echo"


async def test_web_pages_do_not_steer_it_unless_they_may(model_folder: Path) -> None:
    evil = {"origin": "https://evil.example"}
    async with steered(model_folder) as (_, client):
        for method, path in CONTROL:
            answer = await client.request(method, path, headers=evil, json={"model": "x"} if path.endswith("/load") else None)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_refused")
        assert await served_model(client) == "echo"
    async with (
        serving(model_folder, server={"enable_control": True, "allowed_origins": (evil["origin"],)}) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        assert (await client.post("/reset_prefix_cache", headers=evil)).status_code == 200


async def served_model(client: httpx.AsyncClient) -> str:
    return (await client.get("/v1/models")).json()["data"][0]["id"]


def test_the_document_has_them_with_the_flag() -> None:
    paths = document(ServerConfig(enable_control=True))["paths"]
    assert all(method.lower() in paths[path] for method, path in CONTROL)
