"""What every request passes before its route: origins, keys, the length of its body, the share of its key.

Plain ASGI, in front of everything; nothing here is paid for by the token. ``scope`` is handed on as it is, with the server's extensions.
"""

from __future__ import annotations

import contextlib
import re
from contextlib import AbstractContextManager, nullcontext

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mqlab.server.errors import ApiError
from mqlab.server.http.access import Keys
from mqlab.server.http.bodies import Bodies
from mqlab.server.http.shares import Shares
from mqlab.server.metrics.counted import STREAMING
from mqlab.server.openai.stream import refuse
from mqlab.server.state import ServerState

OPEN = frozenset(("/health", "/ping", "/ready", "/metrics"))
"""What an orchestrator asks: without a key, and beyond every limit."""

GENERATING = frozenset((*STREAMING, "/v1/embeddings"))
"""What makes the engine work: a key's share is counted in these."""

_SLASHES = re.compile("/{2,}")
_CLOSE = (b"connection", b"close")


def guarded(app: ASGIApp, state: ServerState) -> ASGIApp:
    """The application behind the checks that the server's settings ask for."""
    gate, origins = Gate(app, state), state.config.allowed_origins
    if not origins:
        return gate
    return CORSMiddleware(gate, origins, allow_methods=("*",), allow_headers=("*",), expose_headers=("retry-after",))


class Gate:
    """Lets requests through to the application, or refuses them in OpenAI's envelope."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state
        self._keys = Keys(state.config.api_key)
        self._bodies = Bodies(state.config.max_body_mb)
        self._shares = Shares(state.config.limit_per_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        scope["path"] = path = _tidy(scope["path"])
        if self._state.draining:
            send = _closing(send)
        try:
            share = self._share(scope, path)
            if (body := self._bodies.of(scope, receive)) is None:
                with share:
                    await self._app(scope, receive, send)
            else:
                with share, contextlib.closing(body):
                    await self._app(scope, body.receive, send)
        except ApiError as error:  # raised here: the application answers its own
            self._count(scope, error)
            await refuse(_closing(send) if _holds_back(scope) else send, error)

    def _share(self, scope: Scope, path: str) -> AbstractContextManager[None]:
        """The share of whoever asks, to be taken while the request is open.

        Raises:
            ApiError: 401.
        """
        if path in OPEN or scope["method"] == "OPTIONS":  # which browsers send without the key
            return nullcontext()
        owner = self._keys.owner(scope)
        return self._shares.one_of(owner) if path in GENERATING else nullcontext()

    def _count(self, scope: Scope, error: ApiError) -> None:
        if scope["method"] == "POST" and scope["path"] in STREAMING:
            self._state.metrics.responses[scope["path"], str(error.status)] += 1
            self._state.metrics.rejections[error.code or ""] += 1


def _tidy(path: str) -> str:
    """A path without doubled slashes and without one at its end, which base URLs of clients bring along."""
    if "//" in path:
        path = _SLASHES.sub("/", path)
    return path.rstrip("/") or "/"


def _holds_back(scope: Scope) -> bool:
    """Whether the client sends the body only when it is told to: one that is refused may send it or not, and nobody could tell."""
    return any(name == b"expect" for name, _ in scope["headers"])


def _closing(send: Send) -> Send:
    """``send`` whose response ends its connection."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), _CLOSE]
        await send(message)

    return sent
