"""The HTTP application: OpenAI's routes over a front, plus health and metrics."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mqlab.errors import CallTimeout, MqlabError
from mqlab.server.chat import Chat
from mqlab.server.completions import Completions
from mqlab.server.errors import ApiError, as_api_error
from mqlab.server.generate import Generate
from mqlab.server.protocol import ChatBody, CompletionBody
from mqlab.server.state import ServerState
from mqlab.types import EngineStats

STATS_TIMEOUT_S = 2.0
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LOG = logging.getLogger(__name__)


def build_app(state: ServerState) -> Starlette:
    """The application over one front."""
    control = _Control(state)
    routes = [
        Route("/v1/completions", Generate(state, CompletionBody, Completions()), methods=["POST"]),
        Route("/v1/chat/completions", Generate(state, ChatBody, Chat()), methods=["POST"]),
        Route("/v1/models", control.models),
        Route("/v1/models/{model:path}", control.model),
        Route("/health", control.health),
        Route("/metrics", control.metrics),
    ]
    handlers: dict[Any, Any] = {HTTPException: _http_error, ApiError: _error, MqlabError: _error, Exception: _error}
    return Starlette(routes=routes, exception_handlers=handlers)


class _Control:
    """The routes that generate nothing."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._last_stats: EngineStats | None = None

    async def models(self, request: Request) -> Response:
        """The one model there is; none while it is unloaded or asleep."""
        del request
        ready = self._state.client.info.state == "ready"
        return JSONResponse({"object": "list", "data": [self._card()] if ready else []})

    async def model(self, request: Request) -> Response:
        """The one model by name."""
        self._state.check_model(request.path_params["model"])
        return JSONResponse(self._card())

    async def health(self, request: Request) -> Response:
        """200 while requests can be served; read from the engine's step stamp, so load does not matter."""
        del request
        health = await self._state.client.check()
        body = {"status": health.state, "detail": health.detail, "phase": health.phase, "phase_age_s": round(health.phase_age_s, 3)}
        return JSONResponse(body, status_code=200 if health.ok else 503)

    async def metrics(self, request: Request) -> Response:
        """The page for Prometheus; a dead engine's counters are missing, a busy one's may be of the last time."""
        del request
        return Response(self._state.metrics.page(await self._stats(), self._state.client.info), media_type=_METRICS_TYPE)

    async def _stats(self) -> EngineStats | None:
        try:
            self._last_stats = msgspec.convert(await self._state.client.call("stats", timeout=STATS_TIMEOUT_S), EngineStats)
        except CallTimeout:
            _LOG.warning("the engine gave no statistics within %g s; the metrics page shows its last ones", STATS_TIMEOUT_S)
        except MqlabError:
            return None
        return self._last_stats

    def _card(self) -> dict[str, Any]:
        info = self._state.client.info
        created = self._state.created
        return {"id": info.name, "object": "model", "created": created, "owned_by": "mqlab", "max_model_len": info.max_model_len}


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    words = {404: f"there is no route {path}", 405: f"{path} does not take {method}"}
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    refusal = ApiError(error.status_code, words.get(error.status_code, str(error.detail)), code=code)
    return _response(refusal, error.headers)


async def _error(request: Request, error: Exception) -> Response:
    del request
    return _response(as_api_error(error))


def _response(error: ApiError, headers: Any = None) -> Response:
    return Response(error.body(), error.status, headers={**error.headers, **(headers or {})}, media_type="application/json")
