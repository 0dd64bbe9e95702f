"""Metrics of servers whose engine is another process: gauges fall back, counters never do, and the environment does not matter."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import Served, echo_command, echo_server, running, serving

from mqlab.contract.waiting import until, until_sync

Page = dict[tuple[str, ...], float]

COUNTING = ("counter", "histogram")


def parsed(page: str, *kinds: str) -> Page:
    """Values by name and labels, of families of these kinds or of all; our own only."""
    return {
        (
            sample.name.removeprefix("mqlab:"),
            *(value for label, value in sorted(sample.labels.items()) if label not in ("engine", "model_name")),
        ): sample.value
        for family in text_string_to_metric_families(page)
        if family.name.startswith("mqlab:") and (not kinds or family.type in kinds)
        for sample in family.samples
    }


async def stream(served: Served, got: asyncio.Semaphore) -> None:
    body = {"prompt": "Hello world", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with httpx.AsyncClient(base_url=served.url) as client, client.stream("POST", "/v1/completions", json=body) as answer:
        async for _ in answer.aiter_lines():
            got.release()


@pytest.mark.parametrize("topology", [pytest.param("aio", marks=pytest.mark.full), "v1"])
async def test_eight_streams_closed_at_once_leave_gauges_at_rest_and_counters_that_only_grow(model_folder: Path, topology: str) -> None:
    async with serving(model_folder, topology, device_time=0.002) as served, httpx.AsyncClient(base_url=served.url) as client:

        async def page(*kinds: str) -> Page:
            return parsed((await client.get("/metrics")).text, *kinds)

        at_rest = await page("gauge")
        before = await page()
        got = asyncio.Semaphore(0)
        streams = [asyncio.create_task(stream(served, got)) for _ in range(8)]
        await until(lambda: served.stats.running == 8)
        assert (await page())["num_requests_running",] == 8
        for one in streams:
            one.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await until(lambda: served.stats.running == served.stats.waiting == 0)
        await until(lambda: served.state.metrics.finished["abort"] == 8)
        pages = [await page() for _ in range(10)]
        assert await page("gauge") == at_rest
        counters = (await page(*COUNTING)).keys()
    last = pages[-1]
    assert last["request_success_total", "abort"] == before["request_success_total", "abort"] + 8
    assert last["engine_finished_total", "abort"] == 8
    assert last["request_prompt_tokens_count",] == last["e2e_request_latency_seconds_count",] == 0, "of those that end by themselves"
    assert last["time_to_first_token_seconds_count",] <= 8
    assert last["generation_tokens_total",] > 0
    for name in counters:
        values = [one.get(name, 0.0) for one in (before, *pages)]
        assert values == sorted(values), name


def three_requests(url: str) -> None:
    for _ in range(3):
        httpx.post(f"{url}/v1/completions", json={"prompt": "Hello world", "max_tokens": 4}).raise_for_status()


@pytest.mark.parametrize("kind", ["stale", pytest.param("missing", marks=pytest.mark.full), pytest.param("a file", marks=pytest.mark.full)])
def test_a_folder_that_the_environment_names_for_metrics_is_left_alone(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = tmp_path / "prometheus"
    if kind == "stale":
        folder.mkdir()
        (folder / "counter_1.db").write_bytes(b"\xff" * 100)
    elif kind == "a file":
        folder.touch()
    found = sorted(tmp_path.rglob("*"))
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    logs = tmp_path / "logs"
    logs.mkdir()
    for _ in range(2):  # it is started again, and counts from 0
        with running(echo_command(model_folder), logs) as process:
            process.wait_ready()
            three_requests(process.url)
            page = httpx.get(f"{process.url}/metrics")
            assert process.stop(10) == 0
        counts = parsed(page.raise_for_status().text)
        assert counts["request_success_total", "length"] == counts["e2e_request_latency_seconds_count",] == 3
        assert (counts["prompt_tokens_total",], counts["generation_tokens_total",]) == (6, 12)
    assert sorted(set(tmp_path.rglob("*")) - {logs, *logs.rglob("*")}) == found


@pytest.mark.full
def test_a_front_that_is_killed_and_started_again_takes_no_count_with_it(model_folder: Path, tmp_path: Path) -> None:
    with echo_server(model_folder, tmp_path, settings={"api_server_count": 2}) as process:

        def count(name: str, *labels: str) -> float:
            return parsed(httpx.get(f"{process.url}/metrics").raise_for_status().text).get((name, *labels), 0.0)

        def front() -> psutil.Process:
            (found,) = [one for one in psutil.Process(process.popen.pid).children() if one.cmdline()[-1] == "front-1"]
            return found

        three_requests(process.url)
        three_requests(process.url)
        assert count("request_success_total", "length") == 6
        old = front()
        os.kill(old.pid, signal.SIGKILL)
        old.wait(5)
        assert count("request_success_total", "length") == 6
        until_sync(lambda: len(psutil.Process(process.popen.pid).children()) == 3 and front().pid != old.pid, 10)
        three_requests(process.url)
        assert count("request_success_total", "length") == count("engine_finished_total", "length") == 9
