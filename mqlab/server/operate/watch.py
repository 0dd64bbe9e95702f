"""What orchestrators and people ask of a server without asking its model: whether it lives, whether it takes requests, how busy it is."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mqlab.client.base import BaseClient
from mqlab.errors import ClientClosedError
from mqlab.server.errors import RETRY
from mqlab.server.state import VERSION, ServerState
from mqlab.types import EngineStats, Health

Reason = Literal["loading", "unloaded", "asleep", "full", "draining", "dead", "hung"]


class HealthAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What /health answers.

    Attributes:
        status: of the engine; "dead" and "hung" come with 503.
        phase: what its loop is doing.
        phase_age_s: seconds since that began.
    """

    status: Literal["ready", "dead", "hung"]
    detail: str = ""
    phase: str = ""
    phase_age_s: float = 0.0


class ReadyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What /ready answers.

    Attributes:
        ready: whether a request that came now would be taken; if not, the status is 503.
        reason: why not.
        detail: the same, in words.
    """

    ready: bool
    reason: Reason | None = None
    detail: str = ""


class LoadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What /load answers.

    Attributes:
        server_load: generating calls that this front process is answering; the name is vLLM's.
        running: requests in the engine's batch, of all fronts; as it published them last.
        waiting: those that wait for room in it.
    """

    server_load: int
    running: int
    waiting: int


class VersionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What /version answers."""

    version: str


def routes(state: ServerState) -> list[Route]:
    """/health, /ready, /ping, /load, /version. None asks the engine, so none waits for it."""

    async def health(request: Request) -> Response:
        """200 while the processes are up and the engine's loop turns; load, a missing model or the end of service do not matter."""
        del request
        found = await _health(state)
        answer = HealthAnswer(status=found.state, detail=found.detail, phase=found.phase, phase_age_s=round(found.phase_age_s, 3))
        return _response(answer, 200 if found.ok else 503)

    async def ready(request: Request) -> Response:
        """200 while a request would be taken."""
        del request
        answer = await readiness(state)
        return _response(answer, 200 if answer.ready else 503)

    async def load(request: Request) -> Response:
        del request
        stats = _glance(state)
        return _response(LoadAnswer(server_load=state.open, running=stats.running, waiting=stats.waiting))

    async def version(request: Request) -> Response:
        del request
        return _response(VersionAnswer(version=VERSION))

    return [
        Route("/health", health),
        Route("/ping", health, methods=["GET", "POST"]),
        Route("/ready", ready),
        Route("/load", load),
        Route("/version", version),
    ]


async def readiness(state: ServerState) -> ReadyAnswer:
    """Whether a request that comes now is taken."""
    if state.draining:
        return _not_ready("draining", "the server is shutting down")
    health = await _health(state)
    if not health.ok:
        return _not_ready(health.state, health.detail)  # pyright: ignore[reportArgumentType]
    info = state.client.info
    if health.phase == "loading":
        return _not_ready("loading", "a model is being loaded")
    if info.state != "ready":
        return _not_ready(info.state, f"model {info.name!r} is {info.state}")
    if (why := state.full()) is not None:
        return _not_ready("full", why)
    return ReadyAnswer(ready=True)


def _not_ready(reason: Reason, detail: str) -> ReadyAnswer:
    return ReadyAnswer(ready=False, reason=reason, detail=detail)


async def _health(state: ServerState) -> Health:
    try:
        return await state.client.check()
    except ClientClosedError:
        return Health(state="dead", detail="the server is shutting down")


def _glance(state: ServerState) -> EngineStats:
    client = state.client
    try:
        return client.glance() if isinstance(client, BaseClient) else EngineStats()
    except ClientClosedError:
        return EngineStats()


def _response(answer: Any, status: int = 200) -> Response:
    return JSONResponse(msgspec.to_builtins(answer), status, headers=RETRY if status == 503 else None)
