"""Control calls: answered, refused or timed out; never harmful."""

from __future__ import annotations

import asyncio
import pstats
import tempfile
from pathlib import Path

import pytest

from mqlab.contract.rig import Rig, ask, assert_serves, begin, every_codec, needs, outcome, outcomes, read, run
from mqlab.errors import CallError, CallTimeout
from mqlab.types import SamplingParams


@every_codec
async def check_ping(rig: Rig) -> None:
    async with rig.client() as client:
        assert await client.call("ping") is True
        assert await asyncio.gather(*(client.call("ping") for _ in range(500))) == [True] * 500


@every_codec
async def check_unknown_call_names_the_known(rig: Rig) -> None:
    async with rig.client() as client:
        with pytest.raises(CallError, match=r"'frobnicate'.*ping.*start_profile.*stats.*stop_profile"):
            await client.call("frobnicate")
        await assert_serves(client)


@every_codec
async def check_failing_calls_harm_nobody(rig: Rig) -> None:
    async with rig.client(slow_build=0, echo={"device_time": 0.005}) as client:
        stream = await begin(client, ask("a", params=SamplingParams(max_tokens=40)))
        for busy in (True, False):
            with pytest.raises(CallError, match="InjectedFault: the call was told to fail"):
                await client.call("fail")
            with pytest.raises(CallError, match="ping"):
                await client.call("ping", 1, 2, 3)
            assert isinstance(await outcome(client.call("opaque")), CallError), "an answer that no message can carry"
            assert isinstance(await outcome(client.call("ping", object())), CallError), "an argument that no message can carry"
            if busy:
                assert (await read(stream))[1] == "length"
        await assert_serves(client)


async def check_calls_while_streams_run(rig: Rig) -> None:
    async with rig.client(echo={"device_time": 0.01}) as client:
        streams = [await begin(client, ask(f"r{i}")) for i in range(5)]
        answers = await outcomes([client.call("ping") for _ in range(50)])
        assert answers == [True] * 50
        assert (await client.stats()).running == 5
        for stream in streams:
            await stream.aclose()


@needs("own_process")
async def check_call_timeout_leaves_the_engine(rig: Rig) -> None:
    async with rig.client(slow_build=0) as client:
        with pytest.raises(CallTimeout, match=r"hang.*0\.1 s"):
            await client.call("hang", 0.5, timeout=0.1)
        assert await client.call("ping", timeout=5) is True
        await assert_serves(client)


@needs("steps_apart")
async def check_call_timeout_behind_a_slow_step(rig: Rig) -> None:
    async with rig.client(slow_step=0.4) as client:
        stream = await begin(client, ask("a"))
        async with asyncio.timeout(5):
            while (await client.check()).phase != "step":
                await asyncio.sleep(0)
        with pytest.raises(CallTimeout):
            await client.call("ping", timeout=0.05)
        await stream.aclose()
        assert await client.call("ping", timeout=5) is True


@every_codec
async def check_profile_is_written(rig: Rig) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "engine.pstats")
        async with rig.client() as client:
            assert await client.call("start_profile", str(path)) == str(path)
            with pytest.raises(CallError, match="already"):
                await client.call("start_profile", str(path))
            await asyncio.gather(*(run(client, ask(f"r{i}", params=SamplingParams(max_tokens=50))) for i in range(20)))
            assert await client.call("stop_profile") == str(path)
            with pytest.raises(CallError, match="start_profile first"):
                await client.call("stop_profile")
            await assert_serves(client)
        assert "finish" in {name for _, _, name in pstats.Stats(str(path)).stats}  # type: ignore[attr-defined]


async def check_profile_has_a_default_place(rig: Rig) -> None:
    async with rig.client() as client:
        path = Path(await client.call("start_profile"))
        await assert_serves(client)
        assert await client.call("stop_profile") == str(path)
        assert pstats.Stats(str(path)).total_calls > 0  # type: ignore[attr-defined]
        path.unlink()


async def check_profile_path_that_cannot_be(rig: Rig) -> None:
    async with rig.client() as client:
        with pytest.raises(CallError, match="/no/such/folder"):
            await client.call("start_profile", "/no/such/folder/x.pstats")
        await assert_serves(client)


async def check_log_stats_is_harmless(rig: Rig) -> None:
    async with rig.client() as client:
        await client.do_log_stats()
        await assert_serves(client)
