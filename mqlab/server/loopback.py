"""OpenAI's routes on a free port of this machine, for whoever runs a front in its own process."""

from __future__ import annotations

from mqlab.config import ServerConfig
from mqlab.front.frontend import Frontend
from mqlab.server.app import build_app
from mqlab.server.http.host import Host
from mqlab.server.http.listener import listen, url
from mqlab.server.state import ServerState

_LOOPBACK = ServerConfig(host="127.0.0.1", port=0)


async def open_http(front: Frontend) -> tuple[str, Host]:
    """Serve OpenAI's routes on a free port of 127.0.0.1.

    Returns:
        the URL, and the server, which whoever opened it closes.
    """
    state = ServerState(front)
    listener = listen(_LOOPBACK)
    host = Host(build_app(state), listener, _LOOPBACK)
    await host.start()
    return url(_LOOPBACK, listener), host
