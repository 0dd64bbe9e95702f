"""Commands on sockets of their own are handled in the order in which they were sent, whichever arrives first."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from mqlab.contract.waiting import until
from mqlab.topologies.rpc_server import InTurn


@given(st.permutations(range(12)))
def test_any_order_of_arrival_is_put_right(arrivals: list[int]) -> None:
    async def arrive() -> list[int]:
        started: list[int] = []
        order = InTurn(started.append)
        for count, number in enumerate(arrivals, 1):
            order.take(number, number)
            assert started == list(range(len(started))), "none before its turn"
            assert len(started) >= min(set(range(13)) - set(arrivals[:count])), "and none after it"
        return started

    assert asyncio.run(arrive()) == list(range(12))


async def test_one_that_never_arrives_is_not_waited_for_for_ever() -> None:
    started: list[int] = []
    order = InTurn(started.append)
    for number in (0, 2, 3, 5):
        order.take(number, number)
    assert started == [0]
    await until(lambda: started == [0, 2, 3, 5])
    order.take(1, 1)
    assert started[-1] == 1, "late is better than never"
    order.take(6, 6)
    assert started[-1] == 6
