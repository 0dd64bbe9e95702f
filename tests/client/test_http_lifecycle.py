"""Several clients of one front process, and a model that comes and goes beneath all of them."""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec
import pytest
from fronts import FAST, attached, socket_of

from mqlab.client.base import BaseClient
from mqlab.client.http import FrontClient, HttpClient
from mqlab.contract.waiting import until
from mqlab.errors import ModelUnavailable
from mqlab.types import ModelInfo, Request, SamplingParams
from mqlab.wire.native import BASE, FrontInfo

ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)


async def read(client: BaseClient, id: str, params: SamplingParams) -> list[int]:
    return [token async for delta in client.generate(Request(id, [3], params)) for token in delta.tokens]


async def asked(front: BaseClient) -> FrontInfo:
    """What the front says of itself to whoever asks now."""
    connector = aiohttp.UnixConnector(str(socket_of(front)))
    async with aiohttp.ClientSession(BASE, connector=connector) as session, session.get("/info") as response:
        return msgspec.json.decode(await response.read(), type=FrontInfo)


@pytest.mark.parametrize("topology", ["inproc", "v1"])
async def test_every_client_learns_what_one_of_them_changed(topology: str) -> None:
    async with attached(topology, device_time=0.005) as (front, other):
        seen: list[tuple[str, str, int]] = []
        other.listeners.append(lambda model: seen.append((model.info.name, model.info.state, other.info.epoch)))
        readers = [asyncio.create_task(read(client, "a", ENDLESS)) for client in (front, other)]
        await until(lambda: front.glance().running == 2)
        await front.unload()
        for result in await asyncio.gather(*readers, return_exceptions=True):
            assert isinstance(result, ModelUnavailable)
        await until(lambda: other.info.state == "unloaded")
        with pytest.raises(ModelUnavailable):
            await read(other, "b", ENDLESS)
        await _attached_late(front, "unloaded", 1)
        loaded = await other.load("second", vocab_size=64)
        await until(lambda: front.info == loaded)
        assert seen == [("echo", "unloaded", 1), ("second", "ready", 2)]
        assert front.front is not None and other.front is not None and front.front.model == other.front.model == loaded
        assert (await asked(front)).model == loaded and (await asked(front)).pids["engine"] == loaded.pid
        await _attached_late(front, "ready", 2)
        assert await read(front, "c", SamplingParams(max_tokens=2)) == [3, 3]


async def _attached_late(front: FrontClient, state: str, epoch: int) -> None:
    async with HttpClient(socket_of(front), FAST) as late:
        assert (late.info.state, late.info.epoch) == (state, epoch) and late.info == front.info
        if state != "ready":
            with pytest.raises(ModelUnavailable):
                await read(late, "late", ENDLESS)


async def test_clients_that_attach_while_models_change_know_the_last() -> None:
    """However an attachment falls between two changes."""
    async with attached("aio") as (front, other):
        clients = [HttpClient(socket_of(front), FAST) for _ in range(12)]

        async def change() -> ModelInfo:
            return [await front.load(f"m{i}") for i in range(8)][-1]

        changing = asyncio.create_task(change())
        await asyncio.gather(*(client.start() for client in clients))
        last = await changing
        for client in (front, other, *clients):
            await until(lambda client=client: client.info == last)
        for client in clients:
            await client.close()
        assert last.epoch == 9
