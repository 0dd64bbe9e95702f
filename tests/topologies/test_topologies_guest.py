"""A front's client of a shared V1 core through the contract: whoever owns the engine, it is one more client of it.

What an owner must give back when it is dropped, and what it leaves when its process ends, is tried with the owner: it is a V1 client.
"""

from __future__ import annotations

import pytest

from mqlab.contract import abort, calls, close, death, embed, model_lifecycle, requests, start
from mqlab.contract.rig import Check, Rig, applies, checks_of
from mqlab.topologies.v1_fronts import AttachedClient, OwnerClient
from mqlab.topologies.v1_seats import Seat
from mqlab.types import ModelInfo
from mqlab.wire.siblings import Siblings
from mqlab.wire.wiring import Wiring


class Guest(AttachedClient):
    """A front's client that brings the engine's owner along."""

    def __init__(self, wiring: Wiring) -> None:
        self._owner = OwnerClient(wiring)
        nowhere = Seat(-1, "", "", "", "")
        super().__init__(wiring, nowhere, Siblings())  # the place is known when the engine is there

    async def _start(self) -> ModelInfo:
        await self._owner.start()
        self._seat = self._owner.seat()
        return await super()._start()

    async def _stop(self) -> None:
        await super()._stop()
        await self._owner.close()


RIG = Rig("guest", Guest)
DROPPED = {
    close.check_dropped_client_gives_all_back,
    close.check_client_dropped_with_streams,
    close.check_client_dropped_after_death,
}
FIRST = {
    start.check_build_failure_says_why,
    abort.check_abort_by_id,
    abort.check_abort_before_intake,
    abort.check_abort_at_random_moments,
    calls.check_calls_while_streams_run,
    model_lifecycle.check_another_model_is_loaded,
    death.check_fatal_begin,
    death.check_kill_is_seen,
    close.check_close_ends_streams_and_calls,
}
"""What another client between may make go wrong is tried each time, the rest with the long ones."""
THEMES = (start, requests, abort, calls, embed, model_lifecycle, death, close)


def cases() -> list[object]:
    """Every check that says something, the long ones marked."""
    checks = [check for theme in THEMES for check in checks_of(theme) if applies(check, RIG) and check not in DROPPED]
    return [
        pytest.param(check, id=check.__name__.removeprefix("check_"), marks=[] if check in FIRST else [pytest.mark.full])
        for check in checks
    ]


@pytest.mark.parametrize("check", cases())
async def test_contract(check: Check) -> None:
    await check(RIG)
