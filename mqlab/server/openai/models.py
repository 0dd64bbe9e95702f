"""/v1/models: the one model there is."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mqlab.server.state import ServerState


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model as clients see it.

    Attributes:
        created: when it was put into service, seconds since 1970.
        max_model_len: prompt and new tokens together, at most.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["mqlab"] = "mqlab"
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """What GET /v1/models answers; empty while the model is unloaded or asleep."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


def routes(state: ServerState) -> list[Route]:
    """/v1/models, and each model by name."""

    async def models(request: Request) -> Response:
        """None while it is unloaded or asleep."""
        del request
        ready = state.client.info.state == "ready"
        return _response(ModelList(data=[card(state)] if ready else []))

    async def model(request: Request) -> Response:
        state.check_model(request.path_params["model"])
        return _response(card(state))

    return [Route("/v1/models", models), Route("/v1/models/{model:path}", model)]


def card(state: ServerState) -> ModelCard:
    """The model that is loaded, or was last."""
    info = state.client.info
    return ModelCard(id=info.name, created=state.created, max_model_len=info.max_model_len)


def _response(answer: msgspec.Struct) -> Response:
    return JSONResponse(msgspec.to_builtins(answer))
