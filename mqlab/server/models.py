"""/v1/models: the one model there is."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mqlab.server.state import ServerState


def routes(state: ServerState) -> list[Route]:
    """/v1/models, and each model by name."""

    async def models(request: Request) -> Response:
        """None while it is unloaded or asleep."""
        del request
        ready = state.client.info.state == "ready"
        return JSONResponse({"object": "list", "data": [_card(state)] if ready else []})

    async def model(request: Request) -> Response:
        state.check_model(request.path_params["model"])
        return JSONResponse(_card(state))

    return [Route("/v1/models", models), Route("/v1/models/{model:path}", model)]


def _card(state: ServerState) -> dict[str, Any]:
    info = state.client.info
    return {"id": info.name, "object": "model", "created": state.created, "owned_by": "mqlab", "max_model_len": info.max_model_len}
