"""What is recorded of requests: every one of them, with every token, and how each ended for its reader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from mqlab.client.base import BaseClient
from mqlab.contract.waiting import until
from mqlab.errors import ClientClosedError, InvalidRequest, RequestFailed
from mqlab.probes.recording import Recording
from mqlab.probes.sink import Lines
from mqlab.topologies import make_client
from mqlab.types import Delta, Request, SamplingParams
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)


def client_of(folder: Path, topology: str = "inproc", *, echo: dict[str, Any] | None = None, **faults: Any) -> BaseClient:
    wraps = (Spec("mqlab.probes.faults:FaultyCore", faults),) if faults else ()
    wiring = Wiring(Spec("mqlab.engine.echo:build", echo or {}), wraps, log_stats_interval=0)
    return make_client(topology, wiring.recorded(folder))


def ask(id: str, params: SamplingParams = ENDLESS) -> Request:
    return Request(id, [3, 4, 5], params)


async def read(stream: AsyncGenerator[Delta, None]) -> int:
    return sum([len(delta.tokens) async for delta in stream])


def lines(folder: Path, role: str = "front") -> dict[str, dict[str, Any]]:
    (path,) = folder.glob(f"{role}-*.requests.jsonl")
    return {line["id"]: line for line in map(json.loads, path.read_text().splitlines())}


def counters(folder: Path, role: str = "front") -> dict[str, int]:
    recording = Recording(folder)
    found = recording.read()
    recording.close()
    return next(page for writer, page in found.items() if writer.startswith(role))


@pytest.mark.parametrize("topology", ["inproc", "aio", "mq", "v1"])
async def test_every_request_and_every_token(tmp_path: Path, topology: str) -> None:
    async with client_of(tmp_path, topology) as client:
        requests = [ask(f"r{i}", SamplingParams(max_tokens=i + 1, ignore_eos=True)) for i in range(20)]
        read_tokens = await asyncio.gather(*(read(client.generate(request)) for request in requests))
    front, engine = lines(tmp_path), lines(tmp_path, "engine")
    assert read_tokens == [front[f"r{i}"]["output_tokens"] for i in range(20)] == list(range(1, 21))
    for id, row in front.items():
        assert row["finish"] == "length" and row["prompt_tokens"] == 3
        assert row["token_counts"] is None and row["output_tokens"] == len(row["token_ns"])
        assert [row["first_ns"], row["last_ns"]] == [row["token_ns"][0], row["token_ns"][-1]]
        stamps = [row["arrived_ns"], engine[id]["added_ns"], engine[id]["scheduled_ns"], *row["token_ns"]]
        assert stamps == sorted(stamps), "one clock for all processes"
    page = counters(tmp_path)
    assert [page[f"request.{name}"] for name in ("started", "finished", "failed", "aborted", "running")] == [20, 20, 0, 0, 0]
    assert (page["request.prompt_tokens"], page["request.output_tokens"]) == (60, 210)
    assert page["request.ttft_ns"] == sum(row["first_ns"] - row["arrived_ns"] for row in front.values())
    assert page["request.itl_ns"] == sum(row["last_ns"] - row["first_ns"] for row in front.values())
    assert (page["request.ttft_count"], page["request.itl_count"]) == (20, sum(len(row["token_ns"]) - 1 for row in front.values()))
    assert counters(tmp_path, "engine")["request.scheduled"] == 20


async def test_how_each_ended(tmp_path: Path) -> None:
    client = client_of(tmp_path, echo={"device_time": 0.001}, refuse=("refused",), fail_requests=("failed",))
    await client.start()
    assert await read(client.generate(Request("stopped", [3, 2], SamplingParams()))) == 2
    for id, error in (("refused", InvalidRequest), ("failed", RequestFailed)):
        with pytest.raises(error):
            await read(client.generate(ask(id)))
    left = client.generate(ask("left"))
    await anext(left)
    await left.aclose()
    aborted = client.generate(ask("aborted"))
    await anext(aborted)
    await client.abort(["aborted"])
    await read(aborted)
    cut = client.generate(ask("cut"))
    unread = client.generate(ask("unread"))
    await anext(cut), await anext(unread)
    await client.close()
    with pytest.raises(ClientClosedError):
        await read(cut)
    expected = {
        "stopped": "stop",
        "refused": "error",
        "failed": "error",
        "left": "left",
        "aborted": "abort",
        "cut": "error",
        "unread": "error",
    }
    assert {id: row["finish"] for id, row in lines(tmp_path).items()} == expected
    page = counters(tmp_path)
    assert [page[f"request.{name}"] for name in ("started", "finished", "failed", "aborted", "running")] == [7, 1, 4, 2, 0]
    assert lines(tmp_path)["refused"]["first_ns"] is None


async def test_the_counters_grow_while_requests_run(tmp_path: Path) -> None:
    async with client_of(tmp_path, echo={"device_time": 0.001}) as client:
        stream = client.generate(ask("a"))
        reader = asyncio.create_task(read(stream))
        await until(lambda: counters(tmp_path)["request.itl_count"] > 10)
        assert counters(tmp_path)["request.running"] == 1
        assert not lines(tmp_path), "it has not ended"
        await client.abort(["a"])
        await reader
        await until(lambda: lines(tmp_path))
        assert counters(tmp_path)["request.running"] == 0


async def test_deltas_of_several_tokens(tmp_path: Path) -> None:
    async with client_of(tmp_path, echo={"num_scheduler_steps": 4, "multi_step_stream_outputs": False}) as client:
        assert await read(client.generate(ask("a", SamplingParams(max_tokens=10, ignore_eos=True)))) == 10
    row = lines(tmp_path)["a"]
    assert row["output_tokens"] == 10 == sum(row["token_counts"])
    assert max(row["token_counts"]) == 4


async def test_a_probe_that_fails_is_dropped_and_requests_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Lines, rows: object) -> None:
        raise OSError(28, "No space left on device")

    async with client_of(tmp_path) as client:
        monkeypatch.setattr(Lines, "write", full)
        for i in range(3):
            assert await read(client.generate(ask(f"r{i}", SamplingParams(max_tokens=5, ignore_eos=True)))) == 5
            await until(lambda: caplog.records)
    said = [record.message for record in caplog.records if record.name == "mqlab.probes"]
    assert said.count("the probe requests is dropped: OSError: [Errno 28] No space left on device") == 1


async def test_a_folder_that_cannot_be_made_leaves_the_client_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    async with client_of(tmp_path / "file" / "folder") as client:
        assert not client.companions
        assert await read(client.generate(ask("a", SamplingParams(max_tokens=5, ignore_eos=True)))) == 5
    assert "requests and loop is dropped" in caplog.text


async def test_the_cost_is_told(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        await read(client.generate(ask("a", SamplingParams(max_tokens=500, ignore_eos=True))))
    page = counters(tmp_path)
    assert page["probe.requests.events"] == 501 and page["probe.requests.ns"] > 0
