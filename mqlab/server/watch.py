"""What orchestrators and people ask of a server without asking its model: whether it lives."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mqlab.server.state import ServerState


def routes(state: ServerState) -> list[Route]:
    """/health."""

    async def health(request: Request) -> Response:
        """200 while requests can be served; read from the engine's step stamp, so load does not matter."""
        del request
        found = await state.client.check()
        body = {"status": found.state, "detail": found.detail, "phase": found.phase, "phase_age_s": round(found.phase_age_s, 3)}
        return JSONResponse(body, status_code=200 if found.ok else 503)

    return [Route("/health", health)]
