"""/metrics: what the front has counted, and what the engine tells when asked."""

from __future__ import annotations

import logging

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mqlab.errors import CallTimeout, MqlabError
from mqlab.server.state import ServerState
from mqlab.types import EngineStats

STATS_TIMEOUT_S = 2.0
_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LOG = logging.getLogger(__name__)


def routes(state: ServerState) -> list[Route]:
    """/metrics."""
    return [Route("/metrics", _Scrape(state).page)]


class _Scrape:
    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._last_stats: EngineStats | None = None

    async def page(self, request: Request) -> Response:
        """The page for Prometheus; a dead engine's counters are missing, a busy one's may be of the last time."""
        del request
        return Response(self._state.metrics.page(await self._stats(), self._state.client.info), media_type=_TYPE)

    async def _stats(self) -> EngineStats | None:
        try:
            self._last_stats = msgspec.convert(await self._state.client.call("stats", timeout=STATS_TIMEOUT_S), EngineStats)
        except CallTimeout:
            _LOG.warning("the engine gave no statistics within %g s; the metrics page shows its last ones", STATS_TIMEOUT_S)
        except MqlabError:
            return None
        return self._last_stats
