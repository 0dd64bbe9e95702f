"""Front processes over an echo core, and clients attached to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mqlab.client.base import BaseClient
from mqlab.client.http import FrontClient, HttpClient
from mqlab.config import Timing
from mqlab.wire.native import SOCKET
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

FAST = Timing(start_timeout=60, health_interval=0.05, step_limit=60, idle_interval=0.05, stop_grace=0.1, stopped_limit=0.5)


def wiring(timing: Timing = FAST, *, wraps: tuple[Spec, ...] = (), **core: Any) -> Wiring:
    """An echo core; ``core`` are its arguments."""
    return Wiring(Spec("mqlab.engine.echo:build", core), wraps, timing=timing)


def socket_of(front: BaseClient) -> Path:
    """The private socket of a front that was launched here."""
    assert front.run_folder is not None
    return front.run_folder / SOCKET


@asynccontextmanager
async def attached(
    topology: str, timing: Timing = FAST, *, own: Timing | None = None, **core: Any
) -> AsyncIterator[tuple[FrontClient, HttpClient]]:
    """A front process, and a second client attached to it, which may have a timing of its ``own``."""
    async with FrontClient(topology, wiring(timing, **core)) as front, HttpClient(socket_of(front), own or timing) as client:
        yield front, client
