"""What steers the engine: profiles, sleep, another model, the prefix cache. Served with --enable-control only; names are vLLM's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mqlab.client.contract import Freed
from mqlab.config import Settings
from mqlab.errors import CallError, CallTimeout
from mqlab.server.errors import ApiError, bad_request
from mqlab.server.openai.jsonroute import JsonRoute
from mqlab.server.openai.models import ModelCard, card
from mqlab.server.state import ServerState

T = TypeVar("T")

_CALL_S = 30.0
"""How long a call that is done at once may wait for the step in flight."""

_SUFFIXES = {"cprofile": ".pstats", "torch": ".trace.json"}


class Nothing(msgspec.Struct, frozen=True, kw_only=True):
    """No fields: the body may be left out."""


class ProfileBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /start_profile.

    Attributes:
        kind: of Python functions (for pstats, snakeviz) or of torch's operators (for ui.perfetto.dev).
    """

    kind: Literal["cprofile", "torch"] = "cprofile"


class ProfileAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a profile, on the server's machine; it is there once /stop_profile has answered."""

    path: str


class ResetAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What POST /reset_prefix_cache answers."""

    reset: bool


class SleepingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What GET /is_sleeping answers."""

    is_sleeping: bool


class LoadBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/model/load.

    Attributes:
        model: a model's name, local folder, hub id, or sim:<model>@<device>.
        options: settings of the engine that are to differ from those that it was started with.
    """

    model: str
    options: dict[str, Any] = {}


_NO_PROFILE_LIMITS: dict[str, Any] = {"profile_prefix": None, "delay_iterations": 0, "max_iterations": 0, "profiler_kwargs": {}}


class Control:
    """The calls. While a model is loaded or woken, its caller waits; /health and /ready answer."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def start_profile(self, body: ProfileBody, request: Request) -> ProfileAnswer:
        """A profile of the engine's thread, from now on, into a new file in mqlab's cache."""
        del request
        path = _new_profile(body.kind)
        return ProfileAnswer(path=await self._state.client.call("start_profile", str(path), body.kind, timeout=_CALL_S))

    async def stop_profile(self, body: Nothing, request: Request) -> ProfileAnswer:
        """End it, write the file."""
        del body, request
        return ProfileAnswer(path=await self._state.client.call("stop_profile"))

    async def reset_prefix_cache(self, body: Nothing, request: Request) -> ResetAnswer:
        """Forget all cached prompts; what runs keeps its blocks."""
        del body, request
        await self._state.client.reset_prefix_cache()
        return ResetAnswer(reset=True)

    async def sleep(self, body: Nothing, request: Request) -> Freed:
        """Free the KV memory, and at level 2 the weights."""
        del body
        return await self._state.client.sleep(_level(request))

    async def wake_up(self, body: Nothing, request: Request) -> ModelCard:
        """Serve again after sleep."""
        del body
        if "tags" in request.query_params:
            raise bad_request("tags are not offered by this server: all that sleeps is woken; leave them out", "tags")
        await self._state.client.wake_up()
        return card(self._state)

    async def is_sleeping(self, body: Nothing, request: Request) -> SleepingAnswer:
        """Whether the model sleeps; asks nobody."""
        del body, request
        return SleepingAnswer(is_sleeping=self._state.client.info.state == "asleep")

    async def load(self, body: LoadBody, request: Request) -> ModelCard:
        """Serve another model."""
        del request
        await self._state.client.call("load", body.model, body.options)  # as it is: an option may have any name
        return card(self._state)

    async def unload(self, body: Nothing, request: Request) -> Freed:
        """Free weights and KV memory; the engine's process stays."""
        del body, request
        return await self._state.client.unload()


def routes(state: ServerState) -> list[Route]:
    """The control routes, or refusals that name the flag."""
    control, origins = Control(state), state.config.allowed_origins
    offered: list[tuple[str, str, Any]] = [
        ("/start_profile", "POST", _route(origins, ProfileBody, control.start_profile, _NO_PROFILE_LIMITS)),
        ("/stop_profile", "POST", _route(origins, Nothing, control.stop_profile)),
        ("/reset_prefix_cache", "POST", _route(origins, Nothing, control.reset_prefix_cache)),
        ("/sleep", "POST", _route(origins, Nothing, control.sleep)),
        ("/wake_up", "POST", _route(origins, Nothing, control.wake_up)),
        ("/is_sleeping", "GET", _route(origins, Nothing, control.is_sleeping)),
        ("/v1/model/load", "POST", _route(origins, LoadBody, control.load)),
        ("/v1/model/unload", "POST", _route(origins, Nothing, control.unload)),
    ]
    if state.config.enable_control:
        return [Route(path, endpoint, methods=[method]) for path, method, endpoint in offered]
    return [Route(path, _not_enabled, methods=_ALL) for path, _, _ in offered]


_ALL = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


async def _not_enabled(request: Request) -> Response:
    raise ApiError(404, f"{request.url.path} is served with --enable-control only; start the server with it", code="not_enabled")


def _route(
    origins: Collection[str], kind: type[T], work: Callable[[T, Request], Awaitable[Any]], not_offered: dict[str, Any] | None = None
) -> JsonRoute[T]:
    async def told(body: T, request: Request) -> Any:
        _check_origin(request, origins)
        try:
            return await work(body, request)
        except CallTimeout as error:
            raise ApiError(503, str(error), kind="service_unavailable_error", code="call_timeout") from error
        except CallError as error:
            raise bad_request(str(error), code="call_refused") from error

    return JsonRoute(kind, told, not_offered)


def _check_origin(request: Request, allowed: Collection[str]) -> None:
    """A browser sends requests without a body anywhere, and only keeps their answers from the page that made them.

    Raises:
        ApiError: 403, it comes from a web page that may not call this server.
    """
    origin = request.headers.get("origin")
    if origin is not None and origin not in allowed and "*" not in allowed:
        raise ApiError(
            403, f"web pages of {origin!r:.200} may not steer this server; allow them with --allowed-origins", code="origin_refused"
        )


def _level(request: Request) -> int:
    given = request.query_params.get("level", "1")
    if given not in ("1", "2"):
        raise bad_request(f"level={given!r:.80} must be 1 (the KV memory is freed, the weights stay) or 2 (both are freed)", "level")
    return int(given)


def _new_profile(kind: str) -> Path:
    folder = Settings.read().cache_dir.resolve() / "captures"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"engine-{datetime.now():%Y%m%d-%H%M%S-%f}{_SUFFIXES[kind]}"
