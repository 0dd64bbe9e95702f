"""Several fronts at one V1 core: each has its own streams and calls, and none of another's; who is gone takes its requests along."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psutil
from fronts import wiring

from mqlab.contract.rig import ask, assert_serves, begin, echo_of, outcome, read, run, settled
from mqlab.contract.waiting import until
from mqlab.errors import EngineDeadError, Overloaded
from mqlab.topologies.v1_fronts import AttachedClient, OwnerClient
from mqlab.types import SamplingParams
from mqlab.wire.siblings import PAGE, Siblings
from mqlab.wire.spec import Spec

SLOW = {"device_time": 0.005}


@asynccontextmanager
async def seated(count: int, **core: Any) -> AsyncIterator[tuple[OwnerClient, list[AttachedClient]]]:
    """An engine with so many fronts, all in this process."""
    async with OwnerClient(wiring(**core)) as owner, AsyncExitStack() as stack:
        assert owner.run_folder is not None
        Siblings.create(owner.run_folder / PAGE, count + 1)
        yield owner, [await stack.enter_async_context(attached(owner, index)) for index in range(count)]


def attached(owner: OwnerClient, index: int) -> AttachedClient:
    """A front that is not started yet."""
    assert owner.run_folder is not None
    return AttachedClient(wiring(), owner.seat(), Siblings.open(owner.run_folder / PAGE, index))


def short(id: str, tokens: int = 40, **changes: Any) -> Any:
    return ask(id, params=SamplingParams(max_tokens=tokens, ignore_eos=True), **changes)


async def test_streams_of_the_same_id_do_not_meet() -> None:
    prompts = ((1, 2), (3, 4, 5), (6, 7, 8, 9))
    async with seated(2, **SLOW) as (owner, fronts):
        asked = [short("same", prompt=prompt) for prompt in prompts]
        answers = await asyncio.gather(*(run(client, one) for client, one in zip((owner, *fronts), asked, strict=True)))
        assert answers == [(echo_of(one, 40), "length") for one in asked]


async def test_an_abort_or_a_reader_that_leaves_ends_its_own_request_only() -> None:
    async with seated(2, **SLOW) as (_, (first, second)):
        kept = asyncio.create_task(run(second, short("same", 200)))
        left, aborted = await begin(first, ask("same")), await begin(first, ask("other"))
        await left.aclose()
        await first.abort(["other"])
        assert (await read(aborted))[1] == "abort"
        assert await kept == (echo_of(short("same"), 200), "length")


async def test_who_is_gone_takes_its_requests_along_and_a_new_one_takes_its_place() -> None:
    async with seated(2, **SLOW) as (owner, (first, second)):
        streams = [await begin(first, ask(f"r{i}")) for i in range(20)]
        kept = asyncio.create_task(run(second, short("r0", 100)))
        files = psutil.Process(owner.info.pid).num_fds()
        assert first._sockets is not None
        first._sockets.close()  # as a kill does it: nothing is said to anybody
        owner.unseat(first._seat)
        await until(lambda: owner.glance().running <= 1)
        assert await kept == (echo_of(short("r0"), 100), "length")
        async with attached(owner, 2) as third:
            await assert_serves(third)
            assert psutil.Process(owner.info.pid).num_fds() <= files  # nothing of the one before is left in the engine
        assert (await settled(owner)).finished["abort"] == 20
        await first.close()
        for stream in streams:
            await stream.aclose()


async def test_calls_are_answered_to_who_asked_and_changes_told_to_all() -> None:
    async with seated(2) as (owner, (first, second)):
        told = [client.info.epoch for client in (owner, first, second)]
        assert told == [1, 1, 1]
        loaded, slept = await asyncio.gather(first.load("another"), second.is_sleeping())
        assert (loaded.name, slept) == ("another", False)
        await until(lambda: {client.info.name for client in (owner, first, second)} == {"another"})
        async with attached(owner, 2) as late:
            assert late.info.name == "another"
            await assert_serves(late)
        await assert_serves(second)


async def test_a_limit_holds_for_all_fronts_together() -> None:
    async with seated(2, **SLOW) as (_, fronts):
        for front in fronts:
            front.limit = 3
        streams = [await begin(fronts[number % 2], ask(f"r{number}")) for number in range(3)]
        refused = await asyncio.gather(*(outcome(run(front, ask("more"))) for front in fronts))
        assert all(isinstance(error, Overloaded) for error in refused)
        await streams.pop(0).aclose()
        assert (await run(fronts[1], short("again")))[1] == "length"
        for stream in streams:
            await stream.aclose()


async def test_the_engines_death_is_told_to_all_in_the_same_words() -> None:
    async with seated(2, **SLOW) as (owner, fronts):
        streams = [await begin(client, ask("a")) for client in (owner, *fronts)]
        os.kill(owner.info.pid, signal.SIGKILL)
        errors = await asyncio.gather(*(outcome(read(stream)) for stream in streams))
        assert all(isinstance(error, EngineDeadError) for error in errors)
        assert {str(error) for error in errors} == {
            f"the engine died: engine process {owner.info.pid} was killed by SIGKILL; "
            "where nobody did that, memory ran out: lower --kv-cache-gb, or serve a smaller model"
        }
        assert [(await client.check()).state for client in fronts] == ["dead", "dead"]


async def test_a_fault_of_the_engine_is_told_to_all() -> None:
    faulty = Spec("mqlab.probes.faults:FaultyCore", {"fail_abort": True})
    async with seated(2, wraps=(faulty,)) as (_, (first, second)):
        stream = await begin(second, ask("a"))
        await first.abort(["anything"])
        error = await outcome(read(stream))
        assert isinstance(error, EngineDeadError)
        assert "fail_abort" in error.cause and "InjectedFault" in error.traceback
        assert isinstance(await outcome(first.stats()), EngineDeadError)
