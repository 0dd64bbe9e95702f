"""The topologies of this package, as rigs for the contract."""

from __future__ import annotations

from functools import partial

from mqlab.contract.rig import Rig
from mqlab.topologies import make_client

RIGS = (
    Rig("inproc", partial(make_client, "inproc"), own_process=False, sees_hangs=False, steps_apart=False),
    Rig("aio", partial(make_client, "aio"), own_process=False),
    Rig("mq", partial(make_client, "mq")),
    Rig("mq-pickle", partial(make_client, "mq"), codec="pickle"),
    Rig("v1", partial(make_client, "v1")),
    Rig("v1-pickle", partial(make_client, "v1"), codec="pickle"),
)
