"""A client whose core lives in its own process."""

from __future__ import annotations

import asyncio
import traceback

from mqlab.client.base import BaseClient
from mqlab.engine.service import Service
from mqlab.errors import EngineDeadError, EngineStartError
from mqlab.types import ModelInfo
from mqlab.wire.statspage import StatsPage
from mqlab.wire.wiring import Wiring
from mqlab.wire.worker import Worker


class LocalClient(BaseClient):
    """Builds the core off the loop and keeps it in service here."""

    def __init__(self, wiring: Wiring) -> None:
        super().__init__(wiring.timing)
        self._wiring = wiring
        self._worker = Worker("mqlab-core")
        self._service: Service | None = None

    async def _start(self) -> ModelInfo:
        self._page = StatsPage()
        try:
            core = await self._worker.run(self._wiring.build_core)
        except Exception as error:
            raise EngineStartError(f"{type(error).__name__}: {error}") from error
        self._service = Service(core, self._page, self._wiring.log_stats_interval)
        return self._service.info

    @property
    def _core(self) -> Service:
        assert self._service is not None, "started clients only"
        return self._service

    def _fatal(self, error: Exception) -> None:
        cause = f"the engine failed: {type(error).__name__}: {error}"
        self._die(EngineDeadError(cause, "".join(traceback.format_exception(error))))

    async def _stop(self) -> None:
        self._worker.close()
        if self._service is not None:
            self._service.close()
            self._service = None
        await asyncio.sleep(0)
