"""What the routes share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mqlab.client.contract import EngineClient
from mqlab.config import ServerConfig
from mqlab.engine.available import check_loaded
from mqlab.front.frontend import Frontend
from mqlab.server.errors import ApiError, unavailable
from mqlab.server.metrics import ServerMetrics


class ServerState:
    """One front over one engine.

    Args:
        config: the server's settings; None for the defaults.

    Attributes:
        created: when the model was put into service, seconds since 1970.
        draining: no new calls are taken.
    """

    def __init__(self, front: Frontend, config: ServerConfig | None = None) -> None:
        self.front = front
        self.config = config or ServerConfig()
        self.metrics = ServerMetrics(front.client.info)
        self.created = int(time.time())
        self.draining = False
        self._open = 0
        self._none_open = asyncio.Event()
        self._none_open.set()

    @property
    def client(self) -> EngineClient:
        """The engine."""
        return self.front.client

    @property
    def model(self) -> str:
        """The name that clients use; of the model that is loaded, or was last."""
        return self.client.info.name

    def check_model(self, name: str | None) -> None:
        """A call that names no model means the only one.

        Raises:
            ApiError: 404, another model is asked for. ModelUnavailable: none can be served just now.
        """
        check_loaded(self.client.info)
        if name is not None and name != self.model:
            raise ApiError(404, f"there is no model {name!r} here; this server has {self.model!r}", param="model", code="model_not_found")

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a generating call while it runs.

        Raises:
            ApiError: 503, the server is shutting down.
        """
        if self.draining:
            raise unavailable("the server is shutting down", "shutting_down")
        self._open += 1
        self._none_open.clear()
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._none_open.set()

    async def drained(self) -> None:
        """Return when no generating call runs."""
        await self._none_open.wait()
