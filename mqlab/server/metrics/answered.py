"""Counts the answers of the HTTP server, whoever gives them."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mqlab.server.metrics.counted import HANDLERS, STREAMING
from mqlab.server.metrics.metrics import ServerMetrics

_MODELS, _ONE_MODEL = "/v1/models/", "/v1/models/{model:path}"


class Answered:
    """The application, with its answers counted by route, method and status.

    The streaming routes count their own: nothing here is paid for by the token.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if _counts_itself(scope):
            return await self._app(scope, receive, send)
        status = "499"

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            status = "500"
            raise
        finally:
            if not _counts_itself(scope):  # its path may have been tidied
                self._metrics.http[_handler(scope["path"]), scope["method"], status] += 1
        return None


def _counts_itself(scope: Scope) -> bool:
    return scope["method"] == "POST" and scope["path"] in STREAMING


def _handler(path: str) -> str:
    return _ONE_MODEL if path.startswith(_MODELS) else path if path in HANDLERS else "other"
