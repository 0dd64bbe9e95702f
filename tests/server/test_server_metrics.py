"""The metrics page: exact after known requests, and untouched by the environment."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import echo_command, running, serving

from mqlab.errors import InvalidRequest, RequestFailed
from mqlab.server.meter import Meter
from mqlab.server.metrics import ServerMetrics
from mqlab.types import ModelInfo, Output, SamplingParams, Usage

INFO = ModelInfo(name="m", vocab_size=9, max_model_len=100, max_prompt_len=99)


def samples(page: str) -> dict[str, float]:
    """Values by name and, where there is one, finish reason or status."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if "le" not in sample.labels:
                label = sample.labels.get("finished_reason") or sample.labels.get("status") or ""
                found[sample.name.removeprefix("mqlab:") + (f"/{label}" if label else "")] = sample.value
    return found


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


async def test_counters_only_grow(model_folder: Path) -> None:
    pages = []
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        for _ in range(10):
            await client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 2})
            pages.append(samples((await client.get("/metrics")).text))
    for name in ("prompt_tokens_total", "generation_tokens_total", "engine_steps_total"):
        values = [page[name] for page in pages]
        assert values == sorted(set(values))


def test_prometheus_environment_does_not_matter(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "missing"))
    with running(echo_command(model_folder), tmp_path) as process:
        process.wait_ready()
        httpx.post(f"{process.url}/v1/completions", json={"prompt": "Hello", "max_tokens": 2}).raise_for_status()
        page = httpx.get(f"{process.url}/metrics")
        assert process.stop(10) == 0
    assert page.status_code == 200
    assert samples(page.text)["request_success_total/length"] == 1


def output(tokens: int, finish: str | None = None, usage: Usage | None = None) -> Output:
    return Output(id="r", index=0, text="", tokens=(1,) * tokens, finish=finish, usage=usage)  # type: ignore[arg-type]


def test_tokens_that_come_at_once_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 4.0])
    monkeypatch.setattr("mqlab.server.metrics.time.monotonic", lambda: next(now))
    metrics = ServerMetrics(INFO)
    meter = Meter(metrics, SamplingParams(max_tokens=9), 1)
    meter.take(0, output(2))
    meter.take(0, output(4))
    meter.take(0, output(1, "length", Usage(3, 7)))
    meter.leave()
    page = samples(metrics.page(None, INFO).decode())
    assert page["time_to_first_token_seconds_sum"] == 1
    assert page["inter_token_latency_seconds_count"] == 5
    assert page["inter_token_latency_seconds_sum"] == 3
    assert page["request_time_per_output_token_seconds_sum"] == 3 / 6
    assert page["e2e_request_latency_seconds_sum"] == 4
    assert page["request_success_total/length"] == 1
    assert page["request_success_total/abort"] == 0


@pytest.mark.parametrize(("error", "counted"), [(InvalidRequest("x"), 0), (RequestFailed("x"), 3)])
def test_a_refused_request_leaves_no_trace_and_a_failed_one_does(error: Exception, counted: int) -> None:
    metrics = ServerMetrics(INFO)
    meter = Meter(metrics, SamplingParams(n=3), 1)
    meter.fail(error)
    meter.leave()
    page = samples(metrics.page(None, INFO).decode())
    assert page["request_success_total/error"] == counted
    assert page["request_success_total/abort"] == 0
