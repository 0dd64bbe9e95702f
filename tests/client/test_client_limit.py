"""A client's limit of open requests: more are refused before anything is sent, and told as what they are wherever they were sent from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fronts import FAST, socket_of, wiring

from mqlab.client.base import BaseClient
from mqlab.client.boundary import as_exception, as_failure
from mqlab.client.http import FrontClient, HttpClient
from mqlab.contract.rig import ask, assert_serves, begin, outcome, outcomes, run, settled
from mqlab.contract.waiting import until
from mqlab.errors import Overloaded
from mqlab.topologies import make_client
from mqlab.types import SamplingParams

SLOW: dict[str, Any] = {"device_time": 0.005}
FIVE = SamplingParams(max_tokens=5)


def limited(limit: int | None, topology: str = "aio") -> BaseClient:
    client = make_client(topology, wiring(**SLOW))
    client.limit = limit
    return client


@pytest.mark.parametrize("topology", ["aio", "v1"])
async def test_more_than_the_limit_are_refused_and_never_sent(topology: str) -> None:
    async with limited(3, topology) as client:
        answers = await outcomes([run(client, ask(f"r{i}", params=FIVE)) for i in range(10)])
        assert [type(answer) for answer in answers[3:]] == [Overloaded] * 7
        assert "3 requests are open" in str(answers[3])
        assert [finish for _, finish in answers[:3]] == ["length"] * 3
        stats = await settled(client)
        assert (sum(stats.finished.values()), stats.prompt_tokens) == (3, 9), "the engine never saw the others"
        await assert_serves(client)


async def test_calls_and_aborts_are_not_limited() -> None:
    async with limited(1) as client:
        stream = await begin(client, ask("a"))
        assert await client.call("ping") is True and (await client.stats()).running == 1
        await client.abort(["a"])
        await stream.aclose()
        await settled(client)
        await assert_serves(client)


async def test_there_is_room_again_when_the_core_has_ended_a_stream_that_was_left() -> None:
    async with limited(2) as client:
        streams = [await begin(client, ask(f"r{i}")) for i in range(2)]
        assert isinstance(await outcome(run(client, ask("more", params=FIVE))), Overloaded)
        await streams[0].aclose()
        await until(lambda: len(client.streams) == 1)
        assert (await run(client, ask("more", params=FIVE)))[1] == "length"
        await streams[1].aclose()


async def test_no_limit_is_no_limit() -> None:
    async with limited(None) as client:
        assert len(await asyncio.gather(*(run(client, ask(f"r{i}", params=FIVE)) for i in range(300)))) == 300


async def test_who_is_attached_is_told_the_same() -> None:
    """The layout of the front process has no socket left; whoever sends through it hears of that as what it is."""
    async with FrontClient("rpc", wiring(**SLOW), options={"max_sockets": 2}) as front, HttpClient(socket_of(front), FAST) as other:
        streams = [await begin(client, ask("held")) for client in (front, other)]
        for client in (front, other):
            error = await outcome(run(client, ask("more")))
            assert isinstance(error, Overloaded) and "max_sockets=2 is the limit" in str(error)
        for stream in streams:
            await stream.aclose()
        await until(lambda: front.glance().running == 0)
        assert (await run(other, ask("more", params=FIVE)))[1] == "length"


def test_the_kind_of_an_error_survives_the_way_to_another_process() -> None:
    back = as_exception(as_failure(Overloaded("too many")))
    assert isinstance(back, Overloaded) and str(back) == "too many"
