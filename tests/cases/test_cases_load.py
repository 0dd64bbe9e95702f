"""A load test that repeats itself, and one that asks for more than it may get (C26, C39, C40): what was measured is what is said."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mock_openai import Script, mock_openai
from serving import Process, echo_command, mqlab_command, running

from mqlab.bench.load_options import LoadConfig
from mqlab.bench.options import DatasetConfig
from mqlab.bench.serve import serve_bench
from mqlab.bench.serve_result import ServeResult

SMALL = DatasetConfig(input_len=6, output_len=8)
STEP_S = 0.004


@pytest.fixture(scope="module")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """An engine that answers with the prompt."""
    command = echo_command(model_folder, topology="aio", device_time=STEP_S)
    with running(command, tmp_path_factory.mktemp("server")) as process:
        yield process.wait_ready()
        process.stop(10)


def bench(url: str, dataset: DatasetConfig = SMALL, **options: Any) -> ServeResult:
    return serve_bench(LoadConfig(**({"base_url": url, "disable_tqdm": True, "num_workers": 1} | options)), dataset)


def prompt_tokens(server: Process) -> int:
    """What the server has counted since it started."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        found = re.search(r"^mqlab:prompt_tokens_total\S* ([\d.e+]+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def test_the_same_benchmark_twice_measures_new_prompts_and_the_same_amount(server: Process, model_folder: Path) -> None:
    """C39: the echo engine answers with the prompt, so the texts tell which prompts it had."""
    before = prompt_tokens(server)
    options = {"num_prompts": 8, "num_warmups": 2, "request_rate": 200.0, "tokenizer": str(model_folder), "max_start_lag": 9.0}
    first, second = (bench(server.url, **options) for _ in range(2))
    assert first.dataset.seed != second.dataset.seed
    assert not {one.text for one in first.requests} & {one.text for one in second.requests}
    for run in (first, second):
        assert (len(run.good), run.input_tokens, run.output_tokens) == (8, 8 * 6, 8 * 8)
        assert run.counted_by == {"usage": 8} and run.cached_share == 0.0
        assert re.search(r"prefix cache: +0\.0%\n", str(run)) and re.search(r"Warm-up requests, in no figure: +2\n", str(run))
        assert re.search(rf"Seed: +{run.dataset.seed}\n", str(run))
        assert (run.spreads["tpot"].median or 0) >= 0.75 * 1e3 * STEP_S, "no token comes faster than a step"
    assert prompt_tokens(server) - before == 2 * (8 + 2) * 6, "the warm-up is sent, and in no figure"


def test_a_run_is_repeated_by_its_seed(server: Process, model_folder: Path) -> None:
    options = {"num_prompts": 6, "request_rate": 100.0, "tokenizer": str(model_folder), "max_start_lag": 9.0}
    first = bench(server.url, **options)
    again = bench(server.url, first.dataset, **options)
    assert [(one.text, one.due_s) for one in again.requests] == [(one.text, one.due_s) for one in first.requests]


@pytest.mark.parametrize(("name", "warns"), [("random", True), ("corpus", True), ("prefix", False)])
def test_cached_prompts_are_warned_of_unless_sharing_is_what_is_measured(name: Any, warns: bool) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 9}}
    with mock_openai(Script(usage=usage)) as mock:
        run = bench(mock.url, replace(SMALL, dataset_name=name), num_prompts=4)
    assert run.cached_share == 0.75 and "75.0%" in str(run)
    assert any("75% of the prompt tokens were in the server's prefix cache" in text for text in run.warnings) == warns


def rate_is_as_asked_or_told(run: ServeResult, rate: float) -> None:
    asked, achieved = run.rates
    assert asked == pytest.approx(rate)
    assert abs(achieved - rate) <= 0.05 * rate or any("were asked for" in text for text in (*run.warnings, *run.void))
    assert f"{asked:.2f} / {achieved:.2f}" in str(run)


def test_300_requests_at_150_a_second_are_300_at_once() -> None:
    """C40: no answer begins before all 300 are under way, which a pool of connections would hold back for ever."""
    with mock_openai(Script(hold=300)) as mock:
        run = bench(mock.url, replace(SMALL, seed=11), num_prompts=300, num_warmups=0, request_rate=150.0)
    assert (len(run.good), mock.peak, len(mock.bodies)) == (300, 300, 300)
    rate_is_as_asked_or_told(run, 150.0)
    assert run.as_record()["max_concurrent_requests"] == 300
    gaps = np.diff([one.due_s for one in run.requests])
    assert ks_distance(gaps) < 1.63 / math.sqrt(len(gaps)), "Poisson, unless told otherwise"


def ks_distance(gaps: np.ndarray) -> float:
    """Kolmogorov and Smirnov's distance between gaps and the exponential distribution of their own mean."""
    expected = 1 - np.exp(-np.sort(gaps) / gaps.mean())
    steps = np.arange(len(gaps) + 1) / len(gaps)
    return float(max(np.abs(expected - steps[:-1]).max(), np.abs(expected - steps[1:]).max()))


def test_all_at_once_waits_for_no_answer() -> None:
    with mock_openai(Script(hold=120)) as mock:
        run = bench(mock.url, num_prompts=120, num_warmups=0)
    assert mock.peak == 120 and {one.due_s for one in run.requests} == {0.0}
    assert "inf / inf" in str(run) and run.void == []


def test_without_descriptors_for_all_sockets_some_requests_fail_and_the_others_count() -> None:
    """Sockets are what a load generator runs out of first."""
    command = shlex.join(mqlab_command("bench", "serve", "--num-prompts", "200", "--input-len", "4", "--output-len", "4", "--disable-tqdm"))
    with mock_openai(Script(delay_s=0.5)) as mock:
        limited = ["bash", "-c", f"ulimit -n 120; exec {command} --base-url {mock.url}"]
        done = subprocess.run(limited, capture_output=True, text=True, timeout=60, check=False)
    found = {name: int(re.search(rf"{name} requests: +(\d+)", done.stdout)[1]) for name in ("Successful", "Failed")}  # type: ignore[index]
    assert found["Successful"] > 0 < found["Failed"] and sum(found.values()) == 200
    assert "Too many open files" in done.stdout and f"{found['Failed']} of 200 requests failed" in done.stdout


def test_refused_requests_do_not_shrink_the_run() -> None:
    with mock_openai(Script(delay_s=0.01)) as mock:
        run = bench(mock.url, num_prompts=1, num_warmups=0)
        mock.script = replace(mock.script, status=503)
        lost = bench(mock.url, num_prompts=30, num_warmups=0, request_rate=300.0, max_start_lag=9.0)
    assert run.failed == 0 and (lost.failed, len(lost.requests), lost.as_record()["num_prompts"]) == (30, 30, 30)
    rate_is_as_asked_or_told(lost, 300.0)


@pytest.mark.parametrize(
    ("usage", "tokenizer", "counted_by"),
    [({"prompt_tokens": 6, "completion_tokens": 7}, True, "usage"), (None, True, "tokenizer"), (None, False, "events")],
    ids=["usage", "tokenized again", "nothing"],
)
def test_counts_that_are_not_the_servers_are_flagged(usage: Any, tokenizer: bool, counted_by: str, model_folder: Path) -> None:
    """C26: fifteen spaces are as many tokens as the server says; what anybody else says is an estimate."""
    options: dict[str, Any] = {"tokenizer": str(model_folder)} if tokenizer else {}
    with mock_openai(Script(texts=[" " * 15], usage=usage)) as mock:
        run = bench(mock.url, num_prompts=2, **options)
    assert run.counted_by == {counted_by: 2} and run.input_tokens == 2 * 6
    assert (run.output_tokens == 2 * 7) == (usage is not None)
    assert any("token counts are estimated" in text for text in run.warnings) == (usage is None)


def test_zeros_for_what_was_said_are_no_count() -> None:
    with mock_openai(Script(texts=["a", "b"], usage={"prompt_tokens": 6, "completion_tokens": 0})) as mock:
        run = bench(mock.url, num_prompts=2)
    assert run.counted_by == {"events": 2} and run.output_tokens == 4
    assert any("token counts are estimated" in text for text in run.warnings)
