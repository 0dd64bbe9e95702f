"""Aborts: at any moment, verified in the core, and never an accident for anybody else."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from mqlab.client.base import BaseClient
from mqlab.contract.rig import (
    Rig,
    ask,
    assert_serves,
    begin,
    echo_of,
    every_codec,
    needs,
    outcome,
    outcomes,
    read,
    run,
    settled,
    the_engine,
)
from mqlab.errors import EngineDeadError
from mqlab.types import EngineStats, SamplingParams

SLOW = {"device_time": 0.01}
SHORT = SamplingParams(max_tokens=3)


async def aborted(client: BaseClient, count: int) -> EngineStats:
    """The core has ended exactly ``count`` requests as aborted, and holds none."""
    stats = await settled(client)
    assert stats.finished["abort"] == count
    return stats


@every_codec
async def check_abort_by_close(rig: Rig) -> None:
    async with rig.client(echo=SLOW) as client:
        stream = await begin(client, ask("a"))
        assert (await client.stats()).running == 1
        await stream.aclose()
        await aborted(client, 1)
        await assert_serves(client)


async def check_abort_by_leaving_the_loop(rig: Rig) -> None:
    async with rig.client(echo=SLOW) as client:
        async with contextlib.aclosing(client.generate(ask("a"))) as stream:
            async for _ in stream:
                break
        await aborted(client, 1)
        with pytest.raises(ZeroDivisionError):
            async with contextlib.aclosing(client.generate(ask("b"))) as stream:
                async for _ in stream:
                    raise ZeroDivisionError
        await aborted(client, 2)


async def check_abort_by_cancel(rig: Rig) -> None:
    async with rig.client(echo=SLOW) as client:
        begun = asyncio.Event()

        async def reader() -> None:
            async for _ in client.generate(ask("a")):
                begun.set()

        task = asyncio.create_task(reader())
        await begun.wait()
        task.cancel()
        assert isinstance(await outcome(task), asyncio.CancelledError)
        await aborted(client, 1)
        await assert_serves(client)


@every_codec
async def check_abort_by_id(rig: Rig) -> None:
    async with rig.client(echo=SLOW) as client:
        readers = [asyncio.create_task(run(client, ask(f"r{i}"))) for i in range(4)]
        other = asyncio.create_task(run(client, ask("other", params=SamplingParams(max_tokens=30))))
        await _all_run(client, 5)
        await client.abort(f"r{i}" for i in range(4))
        assert [finish for _, finish in await outcomes(readers)] == ["abort"] * 4
        assert await outcome(other) == (echo_of(ask(""), 30), "length")
        stats = await aborted(client, 4)
        assert stats.finished["length"] == 1


async def check_abort_of_unknown_ids(rig: Rig) -> None:
    async with rig.client() as client:
        await client.abort(["never", "was"])
        await client.abort([])
        await assert_serves(client)
        await aborted(client, 0)


async def check_abort_on_the_first_token(rig: Rig) -> None:
    async with rig.client(echo=SLOW) as client:

        async def first_token(i: int) -> None:
            stream = await begin(client, ask(f"r{i}"))
            await stream.aclose()

        await asyncio.gather(*(first_token(i) for i in range(300)))
        await aborted(client, 300)
        await assert_serves(client)


async def check_abort_before_intake(rig: Rig) -> None:
    """The engine is busy with a step when request and abort arrive."""
    async with rig.client(slow_step=0.02) as client:
        other = await begin(client, ask("other"))
        for turns in range(8):
            reader = asyncio.create_task(run(client, ask(f"r{turns}")))
            for _ in range(turns):
                await asyncio.sleep(0)
            reader.cancel()
            assert isinstance(await outcome(reader), asyncio.CancelledError)
        await other.aclose()
        stats = await settled(client)
        assert 1 <= stats.finished["abort"] <= 9
        await assert_serves(client)


@every_codec
async def check_an_id_is_free_after_an_abort_at_any_moment(rig: Rig) -> None:
    """Left before its first token or after it: the next request of that id has its own tokens, never the old one's."""
    async with rig.client(echo={"device_time": 0.005}) as client:
        for turns in range(12):
            reader = asyncio.create_task(run(client, ask("again")))
            for _ in range(turns):
                await asyncio.sleep(0)
            reader.cancel()
            await outcome(reader)
            await _assert_free(client, "again", turns)
        assert (await settled(client)).finished["length"] == 12
    async with rig.client(echo={"device_time": 0.002}) as client:
        for turn in range(40):
            stream = await begin(client, ask("again"))
            await stream.aclose()
            await _assert_free(client, "again", turn)
        await aborted(client, 40)


async def _assert_free(client: BaseClient, id: str, i: int) -> None:
    request = ask(id, prompt=(100 + i, 200 + i), params=SHORT)
    assert await outcome(run(client, request)) == (echo_of(request, 3), "length")


async def check_stream_that_was_never_begun(rig: Rig) -> None:
    async with rig.client() as client:
        stream = client.generate(ask("a"))
        await stream.aclose()
        assert await run(client, ask("a", params=SHORT)) == ([3, 4, 5], "length")
        await aborted(client, 0)


async def check_abort_while_waiting(rig: Rig) -> None:
    async with rig.client(echo={**SLOW, "max_num_seqs": 1}) as client:
        first = await begin(client, ask("first"))
        second = asyncio.create_task(run(client, ask("second")))
        await _counted(client, running=1, waiting=1)
        await client.abort(["second"])
        assert await outcome(second) == ([], "abort")
        third = asyncio.create_task(run(client, ask("third")))
        await _counted(client, running=1, waiting=1)
        third.cancel()
        await _counted(client, running=1, waiting=0)
        await first.aclose()
        await aborted(client, 3)


async def check_abort_after_the_last_token_unread(rig: Rig) -> None:
    """The engine is done, the reader has not looked: there is nothing to abort."""
    params = SamplingParams(max_tokens=50)
    async with rig.client(echo={"device_time": 0.002}) as client:
        stream = await begin(client, ask("a", params=params))
        stats = await settled(client)
        assert stats.finished["length"] == 1
        await client.abort(["a"])
        await stream.aclose()
        again = client.generate(ask("b", params=params))
        first = await anext(again)
        await settled(client)
        await client.abort(["b"])
        _, finish = await read(again)
        assert (finish or first.finish) == "length", "what had ended stays as it ended"
        await aborted(client, 0)
        await assert_serves(client)


async def check_abort_after_finish(rig: Rig) -> None:
    async with rig.client() as client:
        stream = client.generate(ask("a", params=SHORT))
        assert await read(stream) == ([3, 4, 5], "length")
        await stream.aclose()
        await client.abort(["a"])
        await aborted(client, 0)
        await assert_serves(client)


async def check_abort_twice(rig: Rig) -> None:
    async with rig.client(echo=SLOW) as client:
        stream = await begin(client, ask("a"))
        await client.abort(["a", "a"])
        await client.abort(["a"])
        await stream.aclose()
        await stream.aclose()
        await aborted(client, 1)
        await assert_serves(client)


@every_codec
async def check_abort_at_random_moments(rig: Rig) -> None:
    """Hundreds of requests left at any moment by any means; the rest is exact and the core is clean."""
    chance = random.Random(2)
    async with rig.client(echo={"max_num_seqs": 64, "device_time": 0.001}) as client:
        answers = await outcomes([_maybe_abort(client, f"r{i}", chance) for i in range(400)], timeout=60)
        assert [answer for answer in answers if answer is not None] == []
        stats = await settled(client)
        assert sum(stats.finished.values()) <= 400
        assert stats.finished["abort"] > 20 and stats.finished["length"] > 20
        await assert_serves(client)


async def _maybe_abort(client: BaseClient, id: str, chance: random.Random) -> None:
    how = chance.choice(["leave", "cancel", "id", "stay", "stay"])
    length = 2_000 if how == "leave" else chance.randrange(1, 120)  # one who leaves does so before the end, however late the front reads
    request = ask(id, prompt=(chance.randrange(3, 999), 4, 5), params=SamplingParams(max_tokens=length))
    reader = asyncio.create_task(_read_some(client, request, chance.randrange(1, 60) if how == "leave" else length + 1))
    for _ in range(chance.randrange(60)):
        await asyncio.sleep(0)
    if how == "cancel":
        reader.cancel()
    if how == "id":
        await client.abort([id])
    with contextlib.suppress(asyncio.CancelledError):
        tokens, finish = await reader
        assert tokens == echo_of(request, len(tokens))
        assert how != "stay" or (len(tokens), finish) == (length, "length")


async def _read_some(client: BaseClient, request: object, limit: int) -> tuple[list[int], str | None]:
    tokens: list[int] = []
    async with contextlib.aclosing(client.generate(request)) as stream:  # type: ignore[arg-type]
        async for delta in stream:
            tokens += delta.tokens
            if delta.finish or len(tokens) >= limit:
                return tokens, delta.finish
    raise AssertionError("a stream ended without a finish")


@every_codec
async def check_raising_abort_is_fatal_to_all(rig: Rig) -> None:
    async with rig.client(echo=SLOW, fail_abort=True) as client:
        readers = [asyncio.create_task(run(client, ask(f"r{i}"))) for i in range(5)]
        await _all_run(client, 5)
        await client.abort(["r0"])
        for error in await outcomes(readers):
            assert isinstance(error, EngineDeadError)
            assert "abort was told to fail" in error.cause and "in abort" in error.traceback
        assert not (await client.check()).ok


async def check_raising_abort_of_one_that_leaves(rig: Rig) -> None:
    async with rig.client(echo=SLOW, fail_abort=True) as client:
        other = asyncio.create_task(run(client, ask("other")))
        stream = await begin(client, ask("a"))
        await stream.aclose()
        assert isinstance(await outcome(other), EngineDeadError)


async def check_abort_after_death_is_silent(rig: Rig) -> None:
    async with rig.client(echo=SLOW, fail_step=3) as client:
        stream = client.generate(ask("a"))
        assert isinstance(await outcome(read(stream)), EngineDeadError)
        await stream.aclose()
        await client.abort(["a", "b"])
    await client.abort(["a"])


@needs("own_process")
async def check_leaving_a_killed_engine_is_silent(rig: Rig) -> None:
    async with rig.client(echo=SLOW) as client:
        stream = await begin(client, ask("a"))
        (await the_engine()).kill()
        await stream.aclose()
        await client.abort(["a"])
        assert isinstance(await outcome(client.stats()), EngineDeadError)


async def _all_run(client: BaseClient, count: int) -> None:
    await _counted(client, running=count, waiting=0)


async def _counted(client: BaseClient, **gauges: int) -> None:
    async with asyncio.timeout(5):
        while True:
            stats = await client.stats()
            if all(getattr(stats, name) == value for name, value in gauges.items()):
                return
            await asyncio.sleep(0)
