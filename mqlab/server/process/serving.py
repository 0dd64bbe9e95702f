"""What serves OpenAI's routes: the process that somebody launched, or several that it has launched itself."""

from __future__ import annotations

import asyncio
from typing import Protocol

from mqlab.server.process.signals import first


class Draining(Protocol):
    """What has requests that run."""

    async def drained(self) -> None:
        """Return when none runs."""
        ...


class Serving(Draining, Protocol):
    """A server's front, or its fronts. In this order; ``stop`` at any time."""

    async def start(self) -> None:
        """Return when connections are being served.

        Raises:
            FrontError: a front process does not start.
        """
        ...

    async def failed(self) -> None:
        """Never return.

        Raises:
            FrontError: a front process dies again and again.
        """
        ...

    async def refuse(self) -> None:
        """Take no more requests; those that run go on."""
        ...

    async def stop(self) -> None:
        """End in bounded time: what still streams ends with an error event."""
        ...


async def wind_down(serving: Serving, *others: Draining, hurry: asyncio.Event, seconds: float) -> None:
    """Take no more requests, and let those that run end, here and at ``others``: within so many seconds, or until one is in a hurry."""
    await serving.refuse()
    await first(_all_drained(serving, *others), hurry.wait(), timeout=seconds)


async def _all_drained(*those: Draining) -> None:
    for one in those:
        await one.drained()
