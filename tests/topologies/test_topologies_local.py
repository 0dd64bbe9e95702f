"""What only the layouts without an engine process have."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import pytest
from corespy import Ending

from mqlab.contract.rig import FAST, Rig, begin_load, outcome
from mqlab.contract.waiting import until
from mqlab.errors import ClientClosedError, EngineStartError
from mqlab.topologies import TOPOLOGIES, find_layout, make_client
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring


@pytest.mark.parametrize("topology", [name for name in TOPOLOGIES if not find_layout(name).own_process])
async def test_a_timeout_of_the_build_is_not_the_start_timeout(topology: str) -> None:
    """A TimeoutError of the build's own, from a download for instance, is told as what it is."""
    rig = Rig(topology, partial(make_client, topology), own_process=False)
    never: Future[None] = Future()
    wiring = Wiring(Spec("concurrent.futures:Future.result", {"self": never, "timeout": 0.01}), timing=FAST)
    error = await outcome(rig.make(wiring).start())
    assert isinstance(error, EngineStartError)
    assert "TimeoutError" in str(error) and "start_timeout" not in str(error)


@pytest.mark.parametrize("topology", [name for name in TOPOLOGIES if not find_layout(name).own_process])
async def test_what_is_loaded_for_nobody_is_closed(topology: str) -> None:
    """A client does not wait for a load when it is closed; whatever the load brings is given back when it ends."""
    Ending.closed.clear()
    rig = Rig(topology, partial(make_client, topology), own_process=False)
    wiring = rig.wiring(slow_load=0.3)
    client = rig.make(replace(wiring, wraps=(*wiring.wraps, Spec("corespy:Ending"))))
    await client.start()
    load = await begin_load(client, "second")
    await client.close()
    assert isinstance(await outcome(load), ClientClosedError)
    assert not Ending.closed
    await until(lambda: Ending.closed)
