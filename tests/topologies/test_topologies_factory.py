"""make_client: names, presets, options."""

from __future__ import annotations

import pytest

from mqlab.errors import ConfigError
from mqlab.topologies import TOPOLOGIES, find_layout, make_client
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

ECHO = Wiring(Spec("mqlab.engine.echo:build"))


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("preset", ["best", "historical"])
async def test_every_topology_has_both_presets_and_a_shape(topology: str, preset: str) -> None:
    client = make_client(topology, ECHO, preset=preset)
    assert client.shape.name.replace("-", "_") == topology
    names = [name for name, _ in client.shape.processes]
    assert (len(names) > 1) == find_layout(topology).own_process
    assert {end for edge in client.shape.edges for end in (edge.source, edge.target)} <= set(names)
    await client.close()


async def test_unknown_names_are_refused_with_the_known() -> None:
    with pytest.raises(ConfigError, match="'zmq' is unknown; choose one of " + ", ".join(TOPOLOGIES)):
        make_client("zmq", ECHO)
    with pytest.raises(ConfigError, match="'newest' is unknown; choose one of historical, best"):
        make_client("mq", ECHO, preset="newest")
    with pytest.raises(ConfigError, match=r"\['colour'\].*'hwm', 'intake', 'health'"):
        make_client("mq", ECHO, colour="red")
    with pytest.raises(ConfigError, match="carrier-pigeon"):
        make_client("mq", Wiring(ECHO.core, codec="carrier-pigeon"))
