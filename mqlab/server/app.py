"""The HTTP application: OpenAI's routes over a front, and those that operate and watch the server."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from mqlab.errors import MqlabError
from mqlab.server.errors import ApiError, as_api_error
from mqlab.server.http.gate import guarded
from mqlab.server.metrics import scrape
from mqlab.server.metrics.answered import Answered
from mqlab.server.openai import embeddings, models, tokens
from mqlab.server.openai.chat import Chat
from mqlab.server.openai.completions import Completions
from mqlab.server.openai.generate import Generate
from mqlab.server.openai.protocol import ChatBody, CompletionBody
from mqlab.server.operate import control, openapi, watch
from mqlab.server.state import ServerState


def build_app(state: ServerState) -> ASGIApp:
    """The application over one front, behind its gate."""
    handlers: dict[Any, Any] = {HTTPException: _http_error, ApiError: _error, MqlabError: _error, Exception: _error}
    return Answered(guarded(Starlette(routes=build_routes(state), exception_handlers=handlers), state), state.metrics)


def build_routes(state: ServerState) -> list[Route]:
    """All routes, the generating ones first."""
    generating = [
        Route("/v1/completions", Generate(state, CompletionBody, Completions()), methods=["POST"]),
        Route("/v1/chat/completions", Generate(state, ChatBody, Chat(state.config.tool_call_parser)), methods=["POST"]),
    ]
    parts = (embeddings, models, tokens, watch, scrape, control, openapi)
    return [*generating, *(route for part in parts for route in part.routes(state))]


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
