"""The metrics page: exact after known requests, whoever makes it, and whatever state the engine is in."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import FAST, echo_wiring, served_by, serving

from mqlab.contract.waiting import until
from mqlab.errors import InvalidRequest, RequestFailed
from mqlab.front.frontend import Frontend
from mqlab.server.app import build_app
from mqlab.server.metrics.frontpage import FrontPage
from mqlab.server.metrics.meter import Meter
from mqlab.server.metrics.metrics import ServerMetrics
from mqlab.server.metrics.scrape import as_text
from mqlab.server.state import ServerState
from mqlab.topologies import make_client
from mqlab.types import Output, RequestStats, SamplingParams, Usage
from mqlab.wire.spec import Spec


def samples(page: str) -> dict[str, float]:
    """Values by name and, where there is one, the label that tells them apart."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if "le" not in sample.labels:
                label = next(
                    (sample.labels[name] for name in ("finished_reason", "status", "source", "reason") if name in sample.labels), ""
                )
                found[sample.name.removeprefix("mqlab:") + (f"/{label}" if label else "")] = sample.value
    return found


def counts_of(metrics: ServerMetrics) -> dict[str, float]:
    """What the page says of a front's counts."""
    return samples(as_text(FrontPage(metrics.sums(), "mqlab:", {"model_name": "m"}, 100).families()).decode())


@pytest.mark.parametrize("topology", ["aio", "v1"])
async def test_three_known_requests_are_counted_exactly(model_folder: Path, topology: str) -> None:
    async with serving(model_folder, topology) as served, httpx.AsyncClient(base_url=served.url) as client:
        await client.post("/v1/completions", json={"prompt": "Hello world", "max_tokens": 6})
        await client.post("/v1/completions", json={"prompt": "Hello world, this", "max_tokens": 60, "n": 2, "stop": "wor", "stream": True})
        await client.post("/v1/completions", json={"prompt": ["ab", "cd"], "max_tokens": 1})
        await client.post("/v1/completions", json={"prompt": "x", "top_p": 7})
        page = (await client.get("/metrics")).text
        prompt_tokens = 2 + 4 + 1 + 1
    found = samples(page)
    assert found["request_success_total/length"] == 3
    assert found["request_success_total/stop"] == 2
    assert found["request_success_total/abort"] == found["request_success_total/error"] == 0
    assert found["http_responses_total/200"] == 3
    assert found["http_responses_total/400"] == 1
    assert found["request_prompt_tokens_sum"] == prompt_tokens
    assert found["request_prompt_tokens_count"] == found["request_params_n_count"] == 4
    assert found["request_generation_tokens_sum"] == 6 + 2 * 2 + 2
    assert found["time_to_first_token_seconds_count"] == found["e2e_request_latency_seconds_count"] == 5
    assert found["num_requests_running"] == found["num_requests_waiting"] == found["kv_cache_usage_perc"] == 0
    # The core may run past a stop string before it hears of it.
    assert sum(value for name, value in found.items() if name.startswith("engine_finished_total/")) == 5
    assert found["generation_tokens_total"] >= 12
    assert found["request_max_num_generation_tokens_sum"] == 6 + 2 + 1 + 1
    for part in ("queue_time_seconds", "prefill_time_seconds", "decode_time_seconds", "inference_time_seconds", "num_preemptions"):
        assert found[f"request_{part}_count"] == 5, part
    assert found["request_prefill_kv_computed_tokens_sum"] == 2 + 2 * 4 + 1 + 1
    assert found["request_inference_time_seconds_sum"] == pytest.approx(
        found["request_prefill_time_seconds_sum"] + found["request_decode_time_seconds_sum"]
    )
    assert found["prompt_tokens_by_source_total/local_compute"] == found["prompt_tokens_total"] == 2 + 2 * 4 + 1 + 1


async def test_counters_only_grow(model_folder: Path) -> None:
    pages = []
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        for _ in range(10):
            await client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 2})
            pages.append(samples((await client.get("/metrics")).text))
    for name in ("prompt_tokens_total", "generation_tokens_total", "engine_steps_total"):
        values = [page[name] for page in pages]
        assert values == sorted(set(values))


def output(tokens: int, finish: str | None = None, usage: Usage | None = None) -> Output:
    return Output(id="r", index=0, text="", tokens=(1,) * tokens, finish=finish, usage=usage)  # type: ignore[arg-type]


def take(meter: Meter, one: Output, now: float) -> None:
    meter.choice(0).tokens(len(one.tokens), now)
    meter.end(0, one, now)


def test_tokens_that_come_at_once_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlab.server.metrics.meter.time.monotonic", lambda: 0.0)
    metrics = ServerMetrics()
    meter = Meter(metrics, SamplingParams(max_tokens=9), 1)
    take(meter, output(2), 1.0)
    take(meter, output(4), 3.0)
    take(meter, output(1, "length", Usage(3, 7)), 4.0)
    meter.leave()
    page = counts_of(metrics)
    assert page["time_to_first_token_seconds_sum"] == 1
    assert page["inter_token_latency_seconds_count"] == 5
    assert page["inter_token_latency_seconds_sum"] == 3
    assert page["request_time_per_output_token_seconds_sum"] == 3 / 6
    assert page["e2e_request_latency_seconds_sum"] == 4
    assert page["request_success_total/length"] == 1
    assert page["request_success_total/abort"] == 0


@pytest.mark.parametrize(("error", "counted"), [(InvalidRequest("x"), 0), (RequestFailed("x"), 3)])
def test_a_refused_request_leaves_no_trace_and_a_failed_one_does(error: Exception, counted: int) -> None:
    metrics = ServerMetrics()
    meter = Meter(metrics, SamplingParams(n=3), 1)
    meter.fail(error)
    meter.leave()
    page = counts_of(metrics)
    assert page["request_success_total/error"] == counted
    assert page["request_success_total/abort"] == 0


def test_what_a_choice_cost_is_taken_from_the_engine_and_its_end_from_the_reader() -> None:
    metrics = ServerMetrics()
    metrics.cost(RequestStats(1.0, 2.0, 4.0, 30, 2, 100), decode_s=5.0)
    metrics.cost(RequestStats(0.5, 0.25, 0.0, 0, 0, 7), decode_s=3.0)  # a stop string ended it before the core knew
    page = counts_of(metrics)
    assert page["request_queue_time_seconds_sum"] == 1.5
    assert page["request_prefill_time_seconds_sum"] == 2.25
    assert page["request_decode_time_seconds_sum"] == 4.0 + 3.0
    assert page["request_inference_time_seconds_sum"] == 6.0 + 3.25
    assert page["request_prefill_kv_computed_tokens_sum"] == 70 + 7
    assert page["request_num_preemptions_sum"] == 2


async def test_cached_prompts_show_in_the_usage_and_on_the_page(model_folder: Path) -> None:
    body = {"prompt": "Hello world, this is it", "max_tokens": 3, "n": 2}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    async with serving(model_folder, cached_tokens=3) as served, httpx.AsyncClient(base_url=served.url) as client:
        whole = (await client.post("/v1/completions", json=body)).json()
        stopped = (await client.post("/v1/completions", json={**body, "stop": "world", "max_tokens": 50})).json()
        streamed = await client.post("/v1/chat/completions", json={**chat, "stream": True, "stream_options": {"include_usage": True}})
        prompts = (await client.post("/v1/completions", json={"prompt": ["a b c d e", "f g h i j"], "max_tokens": 1})).json()
        found = samples((await client.get("/metrics")).text)
    assert stopped["choices"][0]["finish_reason"] == "stop"
    usages = [whole["usage"], stopped["usage"], json.loads(streamed.text.split("\n\n")[-3].removeprefix("data: "))["usage"]]
    assert [usage["prompt_tokens_details"] for usage in usages] == [{"cached_tokens": 3}] * 3, "once for all choices of a prompt"
    assert prompts["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}
    assert found["prompt_tokens_cached_total"] == found["prompt_tokens_by_source_total/local_cache_hit"] == 7 * 3


async def test_answers_are_counted_by_route_method_and_status(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        for path in ("/health", "/health", "/v1/models", "/v1/models/echo", "/v1/models/none", "/a", "/b/c", "/v1/completions"):
            await client.get(path)
        await client.options("/health")
        await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
        await client.post("/v1//completions/", json={"prompt": "x", "max_tokens": 1})
        await client.post("/v1/completions", content=b"{")
        page = (await client.get("/metrics")).text
    found = {
        tuple(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "http_requests_total"
    }
    assert found == {
        ("/health", "GET", "2xx"): 2,
        ("/health", "other", "4xx"): 1,
        ("/v1/completions", "GET", "4xx"): 1,
        ("/v1/completions", "POST", "2xx"): 2,
        ("/v1/completions", "POST", "4xx"): 1,
        ("/v1/models", "GET", "2xx"): 1,
        ("/v1/models/{model:path}", "GET", "2xx"): 1,
        ("/v1/models/{model:path}", "GET", "4xx"): 1,
        ("other", "GET", "4xx"): 2,
    }


async def test_what_is_turned_away_is_counted_by_reason(model_folder: Path) -> None:
    limits = {"limit_concurrency": 1}
    async with serving(model_folder, server=limits, device_time=0.01) as served, httpx.AsyncClient(base_url=served.url) as client:
        body = {"prompt": "x", "max_tokens": 8000, "ignore_eos": True}
        first = asyncio.create_task(client.post("/v1/completions", json=body))
        await until(lambda: served.stats.running == 1)
        assert (await client.post("/v1/completions", json=body)).status_code == 503
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await until(lambda: not served.stats.running)
        await client.post("/v1/completions", json={"prompt": ""})
        found = samples((await client.get("/metrics")).text)
    rejected = {name.partition("/")[2]: count for name, count in found.items() if name.startswith("admission_rejections_total/")}
    assert rejected == {"overloaded": 1, "rate_limit_exceeded": 0, "shutting_down": 0, "model_unavailable": 0}
    assert found["http_responses_total/503"] == found["http_responses_total/499"] == found["http_responses_total/400"] == 1


async def test_the_page_under_vllms_prefix_and_for_who_would_rather_have_openmetrics(model_folder: Path) -> None:
    async with serving(model_folder, server={"metrics_compat": "vllm"}) as served, httpx.AsyncClient(base_url=served.url) as client:
        plain = await client.get("/metrics")
        other = await client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    families = {family.name for family in text_string_to_metric_families(plain.text)}
    assert "vllm:num_requests_running" in families
    assert not any(name.startswith("mqlab:") for name in families)
    assert plain.headers["content-type"] == other.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert {family.name for family in text_string_to_metric_families(other.text)} == families


async def test_sleep_and_its_end_show(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:

        async def state() -> list[str]:
            page = (await client.get("/metrics")).text
            found = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
            return [sample.labels["sleep_state"] for sample in found if sample.name == "mqlab:engine_sleep_state" and sample.value]

        assert await state() == ["awake"]
        await served.client.sleep(1)
        assert await state() == ["weights_offloaded"]
        await served.client.sleep(2)
        assert await state() == ["discard_all"]
        await served.client.wake_up()
        assert await state() == ["awake"]
        await served.client.unload()
        assert await state() == []


async def test_any_front_tells_of_all(model_folder: Path, tmp_path: Path) -> None:
    async with make_client("aio", echo_wiring(model_folder)) as engine:

        def front(index: int) -> httpx.AsyncClient:
            state = ServerState(Frontend.of(engine), front_index=index, front_count=2, tally_folder=tmp_path)
            return httpx.AsyncClient(transport=httpx.ASGITransport(build_app(state)), base_url="http://front")

        async with front(0) as first, front(1) as second:
            for client, count in ((first, 2), (second, 3)):
                for _ in range(count):
                    await client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 2})
            pages = [samples((await client.get("/metrics")).text) for client in (first, second)]
        async with front(1) as again:
            page = (await again.get("/metrics")).text
    for found in (*pages, samples(page)):
        assert found["request_success_total/length"] == found["time_to_first_token_seconds_count"] == 5
        assert found["generation_tokens_total"] == 10, "the engine's are not added up"
    assert 'process_open_fds{front="0"}' in page and 'process_open_fds{front="1"}' in page


async def test_a_hung_engine_holds_the_page_up_for_a_while_only(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlab.server.metrics.scrape.STATS_TIMEOUT_S", 0.05)
    wiring = echo_wiring(model_folder, replace(FAST, step_limit=60))
    hanging = Spec("mqlab.probes.faults:FaultyCore", {"hang_step": 2, "hang_seconds": 30})
    engine = make_client("v1", replace(wiring, wraps=(hanging,)))
    async with served_by(engine) as served, httpx.AsyncClient(base_url=served.url, timeout=10) as client:
        before = (await client.get("/metrics")).text
        asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 9}))
        await until(lambda: served.client.glance().steps >= 1)
        page = (await client.get("/metrics")).text
        assert samples(page)["num_requests_running"] == samples(before)["num_requests_running"] == 0, "its last ones"
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_dead_engine_leaves_the_fronts_part(model_folder: Path) -> None:
    async with serving(model_folder, "v1") as served, httpx.AsyncClient(base_url=served.url) as client:
        await client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 2})
        assert samples((await client.get("/metrics")).text)["engine_up"] == 1
        os.kill(served.client.info.pid, signal.SIGKILL)
        async with asyncio.timeout(5):
            await served.client.ended()
        answer = await client.get("/metrics")
    found = samples(answer.text)
    assert answer.status_code == 200
    assert (found["engine_up"], found["request_success_total/length"]) == (0, 1)
    assert "num_requests_running" not in found
