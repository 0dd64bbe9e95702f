"""What the routes share."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from mqlab.client.base import BaseClient
from mqlab.client.contract import EngineClient
from mqlab.client.pending import pending
from mqlab.config import ServerConfig
from mqlab.engine.available import check_loaded
from mqlab.front.frontend import Frontend
from mqlab.server.errors import ApiError, unavailable
from mqlab.server.metrics.metrics import ServerMetrics
from mqlab.text.chat import read_template

VERSION = version("mqlab")


class ServerState:
    """One front over one engine.

    Args:
        config: the server's settings; None for the defaults.
        front_index: of this front among those of its server; front_count: how many there are.
        tally_folder: where several fronts keep their counts; None for one alone.

    Attributes:
        draining: no new calls are taken.
    """

    def __init__(
        self,
        front: Frontend,
        config: ServerConfig | None = None,
        *,
        front_index: int = 0,
        front_count: int = 1,
        tally_folder: Path | None = None,
    ) -> None:
        self.front = front
        self.config = config or ServerConfig()
        if self.config.chat_template is not None:
            front.use_chat_template(read_template(self.config.chat_template))
        self.front_count = front_count
        self.metrics = ServerMetrics(tally_folder, front_index)
        self._created = int(time.time())
        self._epoch = front.client.info.epoch
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

    @property
    def created(self) -> int:
        """When the model was put into service, seconds since 1970; of one that was loaded later, when it was first asked for."""
        epoch = self.client.info.epoch
        if epoch != self._epoch:
            self._epoch, self._created = epoch, int(time.time())
        return self._created

    @property
    def fingerprint(self) -> str:
        """Another one where what answers depend on is another: OpenAI's system_fingerprint."""
        info = self.client.info
        facts = (VERSION, info.name, info.path, info.architecture, info.dtype)
        return f"fp_{hashlib.sha256(repr(facts).encode()).hexdigest()[:10]}"

    def check_model(self, name: str | None) -> None:
        """A call that names no model means the only one.

        Raises:
            ApiError: 404, another model is asked for. ModelUnavailable: none can be served just now.
        """
        check_loaded(self.client.info)
        if name is not None and name != self.model:
            raise ApiError(404, f"there is no model {name!r} here; this server has {self.model!r}", param="model", code="model_not_found")

    @property
    def open(self) -> int:
        """Generating calls that run."""
        return self._open

    @property
    def most(self) -> int | None:
        """Choices that one call may have: more would find no room even if it were alone. None for no limit."""
        client = self.client
        places = client.info.max_num_seqs
        waiting = None if client.max_pending is None or not places else places + client.max_pending
        return min((limit for limit in (client.limit, waiting) if limit is not None), default=None)

    def full(self) -> str | None:
        """Why a request that came now would be refused for there are too many; None where it would not."""
        client = self.client
        if not isinstance(client, BaseClient):
            return None
        if client.limit is not None and client.open >= client.limit:
            return f"{client.limit} requests are open, as many as may be (limit_concurrency)"
        with_it = pending(client.open + 1, client.glance(), client.info.max_num_seqs)
        if client.max_pending is not None and with_it > client.max_pending:
            return f"{client.pending} requests wait for the engine, as many as may (max_pending)"
        return None

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
