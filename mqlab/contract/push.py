"""Pushed requests: what ``push`` hands to a sink is what ``generate`` gives a reader, by the same rules."""

from __future__ import annotations

import asyncio

import pytest

from mqlab.client.base import BaseClient
from mqlab.contract.rig import SEEN_S, Rig, ask, assert_serves, echo_of, full, needs, settled, the_engine
from mqlab.contract.waiting import until
from mqlab.errors import ClientClosedError, EngineDeadError, InvalidRequest, Overloaded, RequestFailed
from mqlab.types import Delta, Request, SamplingParams

SLOW = {"device_time": 0.01}
SHORT = SamplingParams(max_tokens=9)


class Collector:
    """A sink that keeps what it is given, and holds it to what every sink may rely on.

    Args:
        most: tokens after which it leaves by itself; None for never.
    """

    def __init__(self, client: BaseClient, request: Request, most: int | None = None) -> None:
        self.pushed = client.push(request, self)
        self._most = most
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.error: Exception | None = None
        self.left = False

    def put(self, delta: Delta) -> None:
        """See Sink."""
        assert not self.over, "nothing follows the end"
        assert delta.tokens or delta.finish, "a delta says something"
        self.tokens += delta.tokens
        self.finish = delta.finish
        if self._most is not None and len(self.tokens) >= self._most:
            self.leave()

    def fail(self, error: Exception) -> None:
        """See Sink."""
        assert not self.over, "nothing follows the end"
        self.error = error

    @property
    def over(self) -> bool:
        """Whether nothing may come any more."""
        return self.left or self.finish is not None or self.error is not None

    async def start(self) -> Collector:
        """Begin."""
        await self.pushed.start()
        return self

    def leave(self) -> None:
        """Take no more."""
        self.left = True
        self.pushed.leave()


async def ended(*sinks: Collector) -> None:
    """Return when all are over."""
    await until(lambda: all(sink.over for sink in sinks), SEEN_S)


async def check_pushed_tokens_are_those_that_are_read(rig: Rig) -> None:
    """Many at once, some left from within ``put``, some from outside; each that runs is aborted, and no other."""
    requests = [ask(f"r{i}", prompt=(i + 3, 4), params=SamplingParams(max_tokens=i % 7 + 5)) for i in range(40)]
    async with rig.client(echo={"device_time": 0.001}) as client:
        sinks = [Collector(client, request, 3 if i % 4 == 0 else None) for i, request in enumerate(requests)]
        for sink in sinks:
            await sink.start()
        endless = await Collector(client, ask("endless")).start()
        await ended(*sinks)
        await until(lambda: endless.tokens)
        endless.leave()
        stats = await settled(client)
        for i, (request, sink) in enumerate(zip(requests, sinks, strict=True)):
            if i % 4:
                assert (sink.tokens, sink.finish) == (echo_of(request, i % 7 + 5), "length")
            else:
                assert sink.tokens == echo_of(request, len(sink.tokens)) and len(sink.tokens) >= 3
        assert stats.finished["abort"] >= 1 and sum(stats.finished.values()) == 41
        await until(lambda: not len(client.streams))
        await assert_serves(client)


@full
async def check_pushed_requests_are_refused_and_fail_alone(rig: Rig) -> None:
    async with rig.client(refuse=("r3",), fail_requests=("r5",), echo={"device_time": 0.002}) as client:
        sinks = [await Collector(client, ask(f"r{i}", params=SHORT)).start() for i in range(8)]
        with pytest.raises(InvalidRequest, match="'r0'"):
            await Collector(client, ask("r0")).start()
        with pytest.raises(InvalidRequest):
            await Collector(client, Request("bad", [-1], SHORT)).start()
        client.limit = len(client.streams)
        with pytest.raises(Overloaded, match="limit"):
            await Collector(client, ask("one more")).start()
        client.limit = None
        await ended(*sinks)
        assert isinstance(sinks[3].error, InvalidRequest) and isinstance(sinks[5].error, RequestFailed)
        assert [sink.finish for i, sink in enumerate(sinks) if i not in (3, 5)] == ["length"] * 6
        await assert_serves(client)
        assert (await settled(client)).finished["abort"] == 1, "the one that was made to fail, and none beside it"


@full
async def check_pushed_requests_are_left_at_any_moment(rig: Rig) -> None:
    """An id is free for the next one, however early the one before was left, and none is given the other's tokens."""
    async with rig.client(echo=SLOW) as client:
        for turns in range(12):
            first = await Collector(client, ask("same", prompt=(5, 5))).start()
            for _ in range(turns):
                await asyncio.sleep(0)
            first.leave()
            second = await Collector(client, ask("same", prompt=(6, 6), params=SamplingParams(max_tokens=1))).start()
            await ended(second)
            assert (set(first.tokens), second.tokens) in (({5}, [6]), (set(), [6]))
        await settled(client)
        await assert_serves(client)


@full
async def check_a_sink_that_raises_harms_nobody(rig: Rig) -> None:
    class Broken(Collector):
        def put(self, delta: Delta) -> None:
            raise ZeroDivisionError("the sink is broken")

    async with rig.client(echo=SLOW) as client:
        broken = await Broken(client, ask("broken")).start()
        other = await Collector(client, ask("other", params=SHORT)).start()
        await ended(broken, other)
        assert isinstance(broken.error, ZeroDivisionError)
        assert (other.tokens, other.finish) == (echo_of(ask(""), 9), "length")
        assert (await settled(client)).finished["abort"] == 1
        await assert_serves(client)


@full
@needs("own_process")
async def check_death_ends_pushed_requests(rig: Rig) -> None:
    async with rig.client(echo=SLOW) as client:
        sinks = [await Collector(client, ask(f"r{i}")).start() for i in range(5)]
        await until(lambda: all(sink.tokens for sink in sinks))
        (await the_engine()).kill()
        await ended(*sinks)
        assert {type(sink.error) for sink in sinks} == {EngineDeadError}
        with pytest.raises(EngineDeadError):
            await Collector(client, ask("late")).start()


@full
async def check_close_ends_pushed_requests(rig: Rig) -> None:
    async with rig.client(echo=SLOW) as client:
        sinks = [await Collector(client, ask(f"r{i}")).start() for i in range(3)]
    await ended(*sinks)
    assert {type(sink.error) for sink in sinks} == {ClientClosedError}
    assert len({id(sink.error) for sink in sinks}) == 3, "each has an error of its own"
    assert not len(client.streams)
