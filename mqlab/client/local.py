"""A client whose core lives in its own process."""

from __future__ import annotations

import asyncio
import threading
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from mqlab.client.base import BaseClient
from mqlab.engine.service import Service, died_of
from mqlab.errors import REFUSALS, EngineStartError
from mqlab.plan import InFlight, SampledTokens
from mqlab.types import ModelInfo
from mqlab.wire.statspage import PAGE, Phase, StatsPage
from mqlab.wire.wiring import Wiring
from mqlab.wire.worker import Worker

WORKER = "mqlab-core"
"""Name of the thread that builds the core."""


class LocalClient(BaseClient):
    """Builds the core off the loop and keeps it in service here."""

    def __init__(self, wiring: Wiring) -> None:
        super().__init__(wiring.timing)
        self._wiring = wiring
        self._worker = Worker(WORKER)
        self._abandoned = threading.Event()
        self._service: Service | None = None
        self._folder: Path | None = None
        self._shared: StatsPage | None = None

    def publish(self, folder: Path) -> None:
        """See BaseClient.publish. A page that is there already is taken over."""
        path = folder / PAGE
        self._shared = StatsPage.open(path) if path.exists() else StatsPage.create(path)
        self._folder = folder

    @property
    def run_folder(self) -> Path | None:
        """See BaseClient.run_folder."""
        return self._folder

    def beat(self) -> None:
        """Stamp the page between requests: who looks from outside must see that the loop turns."""
        if not self._alive or self._core.has_work:
            return
        try:
            self._core.idle()
        except Exception as error:
            self._fatal(error)

    async def _start(self) -> ModelInfo:
        page = self._page = self._shared or StatsPage()
        page.enter(Phase.LOADING)
        limit = self.timing.start_timeout
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                core = await self._worker.run(partial(_build, self._wiring, self._abandoned))
        except REFUSALS:
            raise
        except Exception as error:
            if deadline.expired():
                late = f"the engine was not ready within {limit:g} s (start_timeout)"
                raise EngineStartError(f"{late}; raise the limit if it still loads") from error
            raise EngineStartError(f"{type(error).__name__}: {error}", log_tail=traceback.format_exc()) from error
        self._service = Service(core, page, self._wiring.log_stats_interval)
        return self._service.info

    @property
    def _core(self) -> Service:
        assert self._service is not None, "started clients only"
        return self._service

    async def _landed(self, flight: InFlight) -> SampledTokens:
        """What a flight brings, waited for off the loop."""
        return await self._worker.run(partial(_wait, flight, self._core, self._abandoned))

    def _fatal(self, error: Exception) -> None:
        self._on_dead(died_of(error))

    async def _stop(self) -> None:
        self._abandoned.set()
        # A job that hangs keeps its core: closing that under it would crash the process.
        if await self._worker.end(self.timing.stop_grace) and self._service is not None:
            self._service.close()
        self._service = None
        self._page = None


def _wait(flight: InFlight, core: Service, abandoned: threading.Event) -> SampledTokens:
    sampled = flight.wait()
    if abandoned.is_set():  # nobody else will: whoever closed the client may not have waited for this
        core.close()
    return sampled


def _build(wiring: Wiring, abandoned: threading.Event) -> Any:
    core = wiring.build_core()
    if abandoned.is_set():
        core.close()
    return core
