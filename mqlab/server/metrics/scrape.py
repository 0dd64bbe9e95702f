"""/metrics: what all fronts have counted, and what the engine tells when asked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mqlab.errors import CallTimeout, ClientClosedError, MqlabError
from mqlab.server.metrics.enginepage import EnginePage
from mqlab.server.metrics.frontpage import FrontPage, process_families
from mqlab.server.state import ServerState
from mqlab.types import EngineStats

STATS_TIMEOUT_S = 2.0
_LOG = logging.getLogger(__name__)


def routes(state: ServerState) -> list[Route]:
    """/metrics."""
    return [Route("/metrics", Scrape(state).page)]


class Scrape:
    """Makes the page.

    Args:
        state: of the front that answers.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._last_stats: EngineStats | None = None

    async def page(self, request: Request) -> Response:
        """The page for Prometheus; a dead engine's counters are missing, a busy one's may be of the last time."""
        del request
        return Response(as_text(await self._families()), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def _families(self) -> Iterator[Metric]:
        up = await self._up()
        return self._all(up, await self._stats() if up else None)

    def _all(self, up: bool, stats: EngineStats | None) -> Iterator[Metric]:
        state, info = self._state, self._state.client.info
        prefix = f"{state.config.metrics_compat}:"
        labels = {"model_name": info.name, "engine": "0"}
        engine = EnginePage(info, prefix, labels)
        yield from engine.known(up)
        if stats is not None:
            yield from engine.families(stats)
        tally = state.metrics.tally
        yield from FrontPage(tally.sums(), prefix, labels, info.max_model_len).families()
        yield from process_families(tally.pids(), several=state.front_count > 1)

    async def _up(self) -> bool:
        try:
            return (await self._state.client.check()).ok
        except ClientClosedError:
            return False

    async def _stats(self) -> EngineStats | None:
        try:
            self._last_stats = msgspec.convert(await self._state.client.call("stats", timeout=STATS_TIMEOUT_S), EngineStats)
        except CallTimeout:
            _LOG.warning("the engine gave no statistics within %g s; the metrics page shows its last ones", STATS_TIMEOUT_S)
        except MqlabError:
            return None
        return self._last_stats


def as_text(families: Iterable[Metric]) -> bytes:
    """Families in Prometheus' text format, whatever is asked for: in OpenMetrics prometheus_client (0.26) spells names without colons."""
    return generate_latest(_Families([*families]))


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
