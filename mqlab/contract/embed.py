"""Embeddings and logprobs: what comes with a request beside its tokens arrives whole, over every layout and codec."""

from __future__ import annotations

import asyncio
import math
from array import array

import pytest

from mqlab.client.base import BaseClient
from mqlab.client.embed import embed
from mqlab.contract.rig import Rig, ask, assert_serves, begin, echo_of, every_codec, needs, outcome, settled
from mqlab.errors import InvalidRequest, RequestFailed
from mqlab.logprobs import Logprobs
from mqlab.params import PoolingKind
from mqlab.types import Delta, Embedding, Pooling, Request, SamplingParams

HIDDEN = 8
NONE = SamplingParams(max_tokens=0)


def state_of(token: int) -> list[float]:
    """The final hidden state of a token in an echo core."""
    return [math.cos(token * unit / HIDDEN) for unit in range(1, HIDDEN + 1)]


def vector_of(prompt: list[int], kind: PoolingKind, normalize: bool) -> list[float]:
    """What an echo core's embedding must be."""
    states = [state_of(token) for token in prompt]
    pooled = {"mean": [sum(column) / len(states) for column in zip(*states, strict=True)], "last": states[-1], "cls": states[0]}[kind]
    length = math.sqrt(sum(value * value for value in pooled)) if normalize else 1.0
    return [value / length for value in pooled]


def wish(id: str, prompt: tuple[int, ...] = (3, 4, 5), kind: PoolingKind = "mean", normalize: bool = True) -> Request:
    """A request for an embedding."""
    return Request(id, list(prompt), NONE, pooling=Pooling(kind, normalize))


def assert_is(found: Embedding, request: Request) -> None:
    """It is the embedding that was asked for, in every digit of a float32."""
    assert request.pooling is not None
    expected = vector_of(list(request.prompt), request.pooling.kind, request.pooling.normalize)
    assert found.values == pytest.approx(expected, abs=1e-6)
    assert (len(found.values), found.prompt_tokens) == (HIDDEN, len(request.prompt))


@every_codec
async def check_every_kind_of_embedding(rig: Rig) -> None:
    async with rig.client() as client:
        assert client.info.hidden_size == HIDDEN
        for kind in ("mean", "last", "cls"):
            for normalize in (True, False):
                request = wish(f"{kind}-{normalize}", (30, 7, 1000, 7), kind, normalize)
                assert_is(await embed(client, request), request)
        await assert_serves(client)


@every_codec
async def check_embeddings_beside_streams(rig: Rig) -> None:
    async with rig.client(echo={"device_time": 0.002}) as client:
        stream = await begin(client, ask("s"))
        requests = [wish(f"e{i}", tuple(range(1, i + 2))) for i in range(40)]
        for found, request in zip(await asyncio.gather(*(embed(client, one) for one in requests)), requests, strict=True):
            assert_is(found, request)
        await stream.aclose()
        await settled(client)


async def check_an_embedding_comes_alone(rig: Rig) -> None:
    async with rig.client() as client:
        deltas = [delta async for delta in client.generate(wish("e"))]
        assert [(delta.tokens, delta.finish, delta.logprobs) for delta in deltas] == [([], "stop", None)]
        assert len(array("f", deltas[0].embedding or b"")) == HIDDEN


@needs("steps_apart")
async def check_an_aborted_embedding_fails_alone(rig: Rig) -> None:
    async with rig.client(echo={"device_time": 0.1}) as client:
        stream = await begin(client, ask("s"))
        task = asyncio.create_task(embed(client, wish("e")))
        await asyncio.sleep(0)
        await client.abort(["e"])
        assert isinstance(await outcome(task), RequestFailed)
        await stream.aclose()
        await settled(client)


async def check_embeddings_that_cannot_be(rig: Rig) -> None:
    async with rig.client() as client:
        with pytest.raises(InvalidRequest, match="no pooling"):
            await embed(client, ask("e"))
        with pytest.raises(InvalidRequest, match="49152"):
            await embed(client, wish("e", (49152,)))
        with pytest.raises(InvalidRequest, match="malformed"):
            await embed(client, Request("e", [3], NONE, pooling=Pooling("median")))  # type: ignore[arg-type]
        await assert_serves(client)


@every_codec
async def check_logprobs_arrive_with_their_tokens(rig: Rig) -> None:
    """However the deltas are merged on the way: column 0 is the token, with probability 1/2 in an echo core."""
    params = SamplingParams(max_tokens=200, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    async with rig.client() as client:
        request = ask("l", prompt=(9, 8, 7, 6), params=params)
        deltas = await slowly(client, request)
    assert all(delta.logprobs is not None and delta.logprobs.count == len(delta.tokens) for delta in deltas)
    rows = [row for delta in deltas if delta.logprobs is not None for row in delta.logprobs.rows()]
    tokens = [token for delta in deltas for token in delta.tokens]
    assert tokens == echo_of(request, 200)
    assert [[token for token, _ in row] for row in rows] == [[token, token, token + 1] for token in tokens]
    assert [value for _, value in rows[-1]] == pytest.approx([math.log(0.5), math.log(0.5), math.log(0.25)])
    scored = deltas[0].prompt_logprobs
    assert isinstance(scored, Logprobs)
    assert [[token for token, _ in row] for row in scored.rows()] == [[8, 8], [7, 7], [6, 6]]
    assert all(delta.prompt_logprobs is None for delta in deltas[1:])


async def check_a_prompt_that_is_only_scored(rig: Rig) -> None:
    async with rig.client() as client:
        params = SamplingParams(max_tokens=0, prompt_logprobs=0)
        (delta,) = [delta async for delta in client.generate(ask("p", prompt=(9, 8, 7), params=params))]
        assert (delta.tokens, delta.finish) == ([], "length")
        assert delta.prompt_logprobs is not None
        assert delta.prompt_logprobs.rows() == [[(8, pytest.approx(math.log(0.5)))], [(7, pytest.approx(math.log(0.5)))]]


async def slowly(client: BaseClient, request: Request) -> list[Delta]:
    """The deltas of a request whose reader lets some pile up after the first."""
    deltas = []
    async for delta in client.generate(request):
        deltas.append(delta)
        for _ in range(5):
            await asyncio.sleep(0)
    return deltas
