"""Pushed requests where another thread puts the deltas, or another process has the engine."""

from __future__ import annotations

from functools import partial

import pytest

from mqlab.contract import push
from mqlab.contract.rig import Check, Rig, applies, checks_of
from mqlab.topologies import make_client

QUEUES = [
    Rig(f"{name}-queues", partial(make_client, name, preset="historical"), own_process=own) for name, own in (("aio", False), ("mq", True))
]


@pytest.mark.parametrize(
    ("check", "rig"),
    [
        pytest.param(
            check, rig, id=f"{rig.name}-{check.__name__.removeprefix('check_')}", marks=[pytest.mark.full] if rig.own_process else []
        )
        for rig in QUEUES
        for check in checks_of(push)
        if applies(check, rig)
    ],
)
async def test_layouts_that_queue_their_deltas_push_them_too(check: Check, rig: Rig) -> None:
    await check(rig)
