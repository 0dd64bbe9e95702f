"""C72: a key guards every route but those that an orchestrator asks; pre-flight requests pass; base URLs may be untidy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Served, serving
from starlette.applications import Starlette
from starlette.routing import Route

from mqlab.server.app import build_app
from mqlab.server.http.gate import OPEN

KEY, OTHER = "sk-right", "sk-other"
PAGE = "https://chat.example"
CALL = {"prompt": "Hello", "max_tokens": 2}


def listed(served: Served) -> list[tuple[str, str]]:
    """Every route of the application, with a method that it takes."""
    app: Any = build_app(served.state)
    while not isinstance(app, Starlette):
        app = app._app
    routes = [route for route in app.routes if isinstance(route, Route)]
    return [(next(iter((route.methods or {"GET"}) - {"HEAD", "OPTIONS"})), route.path.replace("{model:path}", "echo")) for route in routes]


async def test_a_key_guards_every_route_but_those_of_orchestrators(model_folder: Path) -> None:
    async with (
        serving(model_folder, server={"api_key": (KEY, OTHER), "enable_control": True}) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        routes = listed(served)
        assert {path for _, path in routes} >= {
            "/v1/chat/completions",
            "/v1/models",
            "/v1/models/echo",
            "/sleep",
            "/v1/model/unload",
            *OPEN,
        }
        for method, path in routes:
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {KEY}"}, {"authorization": KEY}):
                answer = await client.request(method, path, headers=headers)
                if path in OPEN:
                    assert answer.status_code == 200, (path, answer.text)
                    continue
                assert answer.status_code == 401, (path, answer.text)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert KEY not in answer.text
        assert (await client.post("/v1/nothing")).status_code == 401, "what exists is told to nobody without a key"


async def test_each_key_opens_in_every_spelling(model_folder: Path) -> None:
    spellings = [
        ("Authorization", f"Bearer {KEY}"),
        ("authorization", f"bearer {KEY}"),
        ("AUTHORIZATION", f"BEARER   {KEY}"),
        ("Authorization", f"Bearer {OTHER}"),
        ("api-key", KEY),
        ("X-API-Key", OTHER),
    ]
    async with serving(model_folder, server={"api_key": (KEY, OTHER)}) as served, httpx.AsyncClient(base_url=served.url) as client:
        for name, value in spellings:
            assert (await client.post("/v1/completions", json=CALL, headers={name: value})).status_code == 200, (name, value)
            assert (await client.get("/v1/models", headers={name: value})).status_code == 200


async def test_without_keys_any_is_accepted(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        given: list[Any] = [{}, {"authorization": "Bearer whatever"}, {"authorization": "nonsense"}, {"authorization": b"\xff\xfe"}]
        for headers in given:
            assert (await client.post("/v1/completions", json=CALL, headers=headers)).status_code == 200


@pytest.mark.parametrize("origins", [(PAGE,), ("*",)])
async def test_a_page_of_an_allowed_origin_may_call(model_folder: Path, origins: tuple[str, ...]) -> None:
    asks = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    allowed = "*" if origins == ("*",) else PAGE
    async with (
        serving(model_folder, server={"api_key": (KEY,), "allowed_origins": origins}) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        for path in ("/v1/chat/completions", "/v1/models", "/health"):
            flight = await client.options(path, headers=asks)
            assert flight.status_code == 200
            assert flight.headers["access-control-allow-origin"] == allowed
            assert "POST" in flight.headers["access-control-allow-methods"]
            assert "authorization" in flight.headers["access-control-allow-headers"]
        for stream in (False, True):
            for key, status in ((KEY, 200), ("wrong", 401)):
                headers = {"origin": PAGE, "authorization": f"Bearer {key}"}
                answer = await client.post("/v1/completions", json={**CALL, "stream": stream}, headers=headers)
                assert answer.status_code == status
                assert answer.headers["access-control-allow-origin"] == allowed, "else the page cannot read the answer"


async def test_a_page_of_another_origin_may_not(model_folder: Path) -> None:
    stranger = {"origin": "https://evil.example"}
    async with serving(model_folder, server={"allowed_origins": (PAGE,)}) as served, httpx.AsyncClient(base_url=served.url) as client:
        flight = await client.options("/v1/completions", headers={**stranger, "access-control-request-method": "POST"})
        answer = await client.post("/v1/completions", json=CALL, headers=stranger)
        assert flight.status_code == 400
        assert "access-control-allow-origin" not in {*flight.headers, *answer.headers}
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        answer = await client.post("/v1/completions", json=CALL, headers=stranger)
        assert "access-control-allow-origin" not in answer.headers


async def test_untidy_base_urls_work(model_folder: Path) -> None:
    async with serving(model_folder, server={"api_key": (KEY,)}) as served, httpx.AsyncClient() as client:
        for path in ("//v1/models", "/v1/models/", "/v1//models//"):
            answer = await client.get(served.url + path, headers={"authorization": f"Bearer {KEY}"})
            assert answer.json()["data"][0]["id"] == "echo"
            assert (await client.get(served.url + path)).status_code == 401, "a slash is no way around"
