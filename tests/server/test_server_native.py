"""The private socket of a front process, from outside of mqlab's own client."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp
import httpx
import msgspec
import pytest
from fronts import FAST, attached, socket_of
from hypothesis import given
from hypothesis import strategies as st
from serving import accepts, echo_command, running

from mqlab.client.http import HttpClient
from mqlab.contract.processes import gone
from mqlab.contract.waiting import until, until_sync
from mqlab.errors import RequestFailed
from mqlab.types import Call, Reply, Request, SamplingParams, Step
from mqlab.wire.codecs import MsgpackCodec
from mqlab.wire.native import FrontInfo, Unframer, frame
from mqlab.wire.registry import Registry

SHORT = SamplingParams(max_tokens=3)


def http(path: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://front", timeout=10)


async def test_the_plain_routes() -> None:
    async with attached("aio", name="mirror") as (front, _), http(socket_of(front)) as client:
        info = msgspec.json.decode((await client.get("/info")).content, type=FrontInfo)
        assert (info.model.name, info.shape.name, info.url) == ("mirror", "aio", None)
        assert info.pids == {"front": front.info.pid, "engine": front.info.pid}
        health = await client.get("/health")
        assert (health.status_code, health.json()["state"]) == (200, "ready")
        assert (await client.get("/stats")).json()["running"] == 0
        for method, path in (("GET", "/v1/models"), ("GET", "/channel"), ("POST", "/info")):
            assert (await client.request(method, path)).status_code == 404


async def test_a_channel_that_ends_aborts_what_it_ran() -> None:
    """A whole conversation in plain bytes; then the client just leaves."""
    codec = MsgpackCodec()
    async with attached("inproc", device_time=0.002) as (front, _):
        reader, writer = await asyncio.open_unix_connection(str(socket_of(front)))
        writer.write(b"POST /channel HTTP/1.1\r\nhost: front\r\ntransfer-encoding: chunked\r\n\r\n")
        body = b"".join(frame(codec.encode(command)) for command in (Request("a", [5], SHORT), Call(1, "ping"), _endless("b")))
        writer.write(b"%x\r\n%b\r\n" % (len(body), body))
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        events = await _events_until_idle(reader, 2)
        assert [delta.tokens for event in events if isinstance(event, Step) for delta in event.deltas if delta.id == "a"]
        assert any(isinstance(event, Reply) and event.value is True for event in events)
        await until(lambda: front.glance().running == 1)
        writer.close()
        await until(lambda: front.glance().running == 0)
        assert (await front.stats()).finished["abort"] == 1


def _endless(id: str) -> Request:
    return Request(id, [6], SamplingParams(max_tokens=None, ignore_eos=True))


async def _events_until_idle(reader: asyncio.StreamReader, replies: int) -> list[object]:
    """Events of the first chunks, until some have come."""
    unframer, codec, events = Unframer(), MsgpackCodec(), []
    while len(events) < replies or not any(isinstance(event, Reply) for event in events):
        size = int(await reader.readline(), 16)
        events += [codec.event(message) for message in unframer.feed(await reader.readexactly(size))]
        await reader.readexactly(2)
    return events


async def test_nonsense_ends_its_own_channel_only() -> None:
    async with attached("inproc") as (front, client):
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket_of(front)))) as session:
            with pytest.raises(aiohttp.ClientError):
                async with session.post("http://front/channel", data=frame(b"\xc1 nonsense")) as response:
                    await response.read()
        assert await client.call("ping") is True
        assert (await front.check()).ok


@given(st.lists(st.binary(max_size=300), max_size=20), st.data())
def test_frames_survive_any_cut(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, messages))
    unframer, found = Unframer(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += unframer.feed(stream[:size])
        stream = stream[size:]
    assert found == messages


@pytest.mark.parametrize("topology", ["inproc", "v1"])
async def test_a_server_can_be_found_attached_to_and_stopped(model_folder: Path, tmp_path: Path, topology: str) -> None:
    with running(echo_command(model_folder, topology=topology), tmp_path) as process:
        await asyncio.to_thread(process.wait_ready)
        (entry,) = Registry().entries()
        assert (entry.role, entry.topology, entry.url) == ("serve", topology, process.url)
        assert entry.pid == entry.owner_pid == process.popen.pid and entry.socket is not None
        async with HttpClient(entry.socket, FAST) as client:
            assert client.front is not None and client.front.url == process.url
            assert [delta.tokens async for delta in client.generate(Request("a", [4], SHORT))]
            async with httpx.AsyncClient(base_url=process.url) as outside:
                for path in ("/info", "/stats", "/channel"):
                    assert (await outside.get(path)).status_code == 404, "native routes are not on the port"
            assert await asyncio.to_thread(Registry().stop, entry)
            async with asyncio.timeout(5):
                await client.ended()
        assert process.popen.wait(10) == 0
        assert gone(process.engine_pid) and Registry().entries() == []


async def test_attached_streams_finish_while_a_server_drains(model_folder: Path, tmp_path: Path) -> None:
    with running(echo_command(model_folder, drain_timeout=20.0, device_time=0.005), tmp_path) as process:
        await asyncio.to_thread(process.wait_ready)
        (entry,) = Registry().entries()
        assert entry.socket is not None
        async with HttpClient(entry.socket, FAST) as client:
            running_on = client.generate(Request("a", [4], SamplingParams(max_tokens=200, ignore_eos=True)))
            tokens = list((await anext(running_on)).tokens)
            process.popen.send_signal(signal.SIGTERM)
            await until(lambda: not accepts(process.url))
            with pytest.raises(RequestFailed, match="shutting down"):
                await anext(client.generate(Request("b", [4], SHORT)))
            tokens += [token async for delta in running_on for token in delta.tokens]
            assert len(tokens) == 200
        assert await asyncio.to_thread(process.popen.wait, 10) == 0


@pytest.mark.parametrize("topology", ["inproc", "v1"])
def test_a_killed_server_is_dropped_by_whoever_looks_next(model_folder: Path, tmp_path: Path, topology: str) -> None:
    with running(echo_command(model_folder, topology=topology), tmp_path) as process:
        process.wait_ready()
        (entry,) = Registry().entries()
        process.popen.kill()
        process.popen.wait()
        assert Registry().entries() == []
        assert entry.socket is not None and not Path(entry.socket).parent.exists()
        until_sync(lambda: gone(process.engine_pid))
