"""Requests: every token, in order, to the right reader; a bad one harms nobody."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import msgspec
import pytest

from mqlab.client.base import BaseClient
from mqlab.contract.rig import (
    ENDLESS,
    Rig,
    Stopwatch,
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
    run_all,
    settled,
)
from mqlab.contract.waiting import until
from mqlab.errors import InvalidRequest, RequestFailed
from mqlab.types import Delta, EngineStats, Request, RequestStats, SamplingParams

MANY = 10_000


@every_codec
async def check_ten_thousand_requests(rig: Rig) -> None:
    requests = [ask(f"r{i}", prompt=(i % 1000 + 3, i // 1000 + 3, 5), params=SamplingParams(max_tokens=i % 7 + 1)) for i in range(MANY)]
    async with rig.client() as client:
        answers = await run_all(client, requests, rig.streams)
        for request, (tokens, finish) in zip(requests, answers, strict=True):
            assert tokens == echo_of(request, request.params.max_tokens or 0)
            assert finish == "length"
        stats = await settled(client)
        assert stats.finished["length"] == MANY
        assert stats.generation_tokens == sum(len(tokens) for tokens, _ in answers)


async def check_tokens_come_as_they_are_made(rig: Rig) -> None:
    request = ask("a", params=SamplingParams(max_tokens=6))
    async with rig.client(slow_step=0.02) as client:
        deltas = [delta async for delta in client.generate(request)]
        stream = client.generate(ask("endless"))
        first = await anext(stream)
        assert first.tokens and first.finish is None, "a stream, not one lump"
        assert (await client.stats()).running == 1
        await stream.aclose()
    assert [delta.finish for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert [token for delta in deltas for token in delta.tokens] == echo_of(request, 6)
    assert {delta.id for delta in deltas} == {"a"}


@every_codec
async def check_end_and_stop_tokens(rig: Rig) -> None:
    async with rig.client() as client:
        assert await run(client, ask("eos", prompt=(3, 2, 4))) != ([3, 2], "stop"), "ignore_eos"
        assert await run(client, ask("eos", prompt=(3, 2, 4), params=SamplingParams())) == ([3, 2], "stop")
        stop = SamplingParams(stop_token_ids=(4,))
        last = [delta async for delta in client.generate(ask("stop", prompt=(3, 5, 4), params=stop))][-1]
        assert (last.finish, last.stop_reason) == ("stop", 4)


BAD_PROMPTS: dict[str, Any] = {
    "empty": [],
    "outside the vocabulary": [49152],
    "negative": [-1],
    "too long": [3] * 8192,
    "floats": [1.5, 2.5],
    "text": ["a"],
    "nothing": [None],
    "nested": [[3]],
    "beyond 64 bits": [2**70],
    "an object": [object()],
}


@every_codec
async def check_bad_requests_are_refused_alone(rig: Rig) -> None:
    async with rig.client(echo={"device_time": 0.005}) as client:
        good = await begin(client, ask("good", params=SamplingParams(max_tokens=60)))
        errors = {name: await outcome(run(client, Request("bad", prompt, ENDLESS))) for name, prompt in BAD_PROMPTS.items()}
        assert {name: type(error) for name, error in errors.items()} == dict.fromkeys(BAD_PROMPTS, InvalidRequest)
        assert all(str(error) for error in errors.values())
        _, finish = await read(good)
        assert finish == "length"
        await assert_serves(client)
        assert (await settled(client)).finished["abort"] == 0


@every_codec
async def check_refused_and_failed_requests_are_alone(rig: Rig) -> None:
    requests = [ask(f"r{i}", prompt=(i + 3, 4), params=SamplingParams(max_tokens=9)) for i in range(20)]
    async with rig.client(refuse=("r3",), fail_requests=("r5",)) as client:
        answers = await outcomes([run(client, request) for request in requests])
        assert isinstance(answers[3], InvalidRequest) and "refuse" in str(answers[3])
        assert isinstance(answers[5], RequestFailed) and "fail_requests" in str(answers[5])
        for i in set(range(20)) - {3, 5}:
            assert answers[i] == (echo_of(requests[i], 9), "length")
        await assert_serves(client)
        await settled(client)


async def check_duplicate_id_is_refused(rig: Rig) -> None:
    first, twin = ask("twin", params=SamplingParams(max_tokens=50)), ask("twin", prompt=(9, 9), params=SamplingParams(max_tokens=3))
    async with rig.client(echo={"device_time": 0.002}) as client:
        stream = await begin(client, first)
        with pytest.raises(InvalidRequest, match="'twin'"):
            await run(client, twin)
        tokens, finish = await read(stream)
        assert tokens == echo_of(first, 50)[-len(tokens) :] and finish == "length"
        assert await run(client, twin) == ([9, 9, 9], "length"), "an id is free again after its end"
        assert (await settled(client)).finished["length"] == 2


@needs("merges")
async def check_slow_reader_costs_only_its_tokens(rig: Rig) -> None:
    """Nothing queues up for readers that do not read: one delta each, however many steps went by."""
    params = SamplingParams(max_tokens=3000, ignore_eos=True)
    async with rig.client(echo={"device_time": 0.0003}) as client:
        streams = [client.generate(ask(f"s{i}", params=params)) for i in range(4)]
        firsts = [await anext(stream) for stream in streams]
        tracemalloc.start()
        await settled(client, timeout=30)
        await until(lambda: client.streams.idle)  # an answer may have come a shorter way than the tokens before it
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 1_000_000, "four readers with 3,000 unread ids each"
        for first, stream in zip(firsts, streams, strict=True):
            rest = [delta async for delta in stream]
            assert len(rest) <= 1
            assert [first, *rest][-1].finish == "length"
            assert sum(len(delta.tokens) for delta in [first, *rest]) == 3000


async def check_a_burst_leaves_readers_their_turns(rig: Rig) -> None:
    """Steps that come faster than readers read are merged, but not until the last of them."""
    async with rig.client() as client:
        deltas = [delta async for delta in client.generate(ask("a", params=SamplingParams(max_tokens=8000, ignore_eos=True)))]
        assert len(deltas) > 10


async def check_reader_that_never_reads_stops_nobody(rig: Rig) -> None:
    async with rig.client() as client:
        idle = await begin(client, ask("idle", params=SamplingParams(max_tokens=4000, ignore_eos=True)))
        requests = [ask(f"r{i}", params=SamplingParams(max_tokens=20)) for i in range(200)]
        answers = await asyncio.gather(*(run(client, request) for request in requests))
        assert answers == [(echo_of(request, 20), "length") for request in requests]
        tokens, _ = await read(idle)
        assert len(tokens) <= 4000


@every_codec
async def check_large_prompts(rig: Rig) -> None:
    prompts = [tuple((i * 31 + k) % 49000 + 3 for k in range(8000)) for i in range(20)]
    requests = [ask(f"r{i}", prompt=prompt, params=SamplingParams(max_tokens=40, ignore_eos=True)) for i, prompt in enumerate(prompts)]
    async with rig.client() as client:
        answers = await asyncio.gather(*(run(client, request) for request in requests))
        assert answers == [(echo_of(request, 40), "length") for request in requests]


@every_codec
async def check_stats_have_one_shape(rig: Rig) -> None:
    async with rig.client(echo={"num_blocks": 777}) as client:
        plain = await client.call("stats")
        assert type(plain) is dict and set(plain) == set(EngineStats.__struct_fields__)
        assert plain["finished"] == {"stop": 0, "length": 0, "abort": 0, "error": 0}
        stats = msgspec.convert(plain, EngineStats)
        assert (stats.blocks_total, stats.running, stats.waiting, stats.kv_usage) == (777, 0, 0, 0)
        await assert_serves(client)
        later = await client.stats()
        assert (later.prompt_tokens, later.generation_tokens, later.finished["length"]) == (2, 5, 1)
        assert later.steps > stats.steps and later.stamp_ns > stats.stamp_ns


@every_codec
async def check_a_request_tells_what_it_cost(rig: Rig) -> None:
    """By its first tokens what the prompt has cost, by its last ones all; never more time than its reader saw pass."""
    async with rig.client(echo={"cached_tokens": 2}) as client:
        for count in (1, 3):
            watch = Stopwatch()
            deltas = [delta async for delta in client.generate(ask("a", params=SamplingParams(max_tokens=count)))]
            seen = watch.seconds
            first, last = deltas[0].stats, deltas[-1].stats
            assert first is not None and last is not None
            assert (last.prompt_tokens, last.cached_tokens, last.preemptions) == (3, 2, 0) == _counts(first)
            assert min(last.queued_s, last.prefill_s, last.decode_s) >= 0
            assert last.queued_s + last.prefill_s + last.decode_s <= seen
            assert (first.queued_s, first.prefill_s) == (last.queued_s, last.prefill_s)
        stream = await begin(client, ask("b"))
        await client.abort(["b"])
        *_, end = [delta async for delta in stream]
        assert end.stats is not None and end.stats.cached_tokens == 2


async def check_ids_of_any_text(rig: Rig) -> None:
    ids = ["", "ü-😀", "a b\nc", "x" * 5000]
    async with rig.client() as client:
        answers = await asyncio.gather(*(run(client, ask(id, params=SamplingParams(max_tokens=2))) for id in ids))
        assert answers == [([3, 4], "length")] * len(ids)


async def check_readers_come_and_go(rig: Rig) -> None:
    """Streams begin while others run; each has its own tokens."""
    async with rig.client(echo={"max_num_seqs": 8}) as client:
        running: list[asyncio.Task[Any]] = []
        for i in range(100):
            running.append(asyncio.create_task(_first_and_rest(client, i)))
            await asyncio.sleep(0)
        assert await asyncio.gather(*running) == [echo_of(ask("", prompt=(i + 3, 4)), i % 13 + 1) for i in range(100)]


async def _first_and_rest(client: BaseClient, i: int) -> list[int]:
    tokens: list[int] = []
    async for delta in client.generate(ask(f"r{i}", prompt=(i + 3, 4), params=SamplingParams(max_tokens=i % 13 + 1))):
        tokens += _checked(delta, f"r{i}")
        await asyncio.sleep(0)
    return tokens


def _counts(stats: RequestStats) -> tuple[int, int, int]:
    return stats.prompt_tokens, stats.cached_tokens, stats.preemptions


def _checked(delta: Delta, id: str) -> list[int]:
    assert delta.id == id
    return delta.tokens
