"""``mqlab bench serve`` from the settings to the figures, against a scripted server."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mock_openai import Mock, Script, mock_openai

from mqlab.bench.bodies import make_body
from mqlab.bench.cpu import CpuReport
from mqlab.bench.datasets import Sample
from mqlab.bench.figures import Timed, measure
from mqlab.bench.load.messages import Record, WorkerLoad
from mqlab.bench.load_options import LoadConfig
from mqlab.bench.options import DatasetConfig
from mqlab.bench.serve import due_times, main, result_folder, save, serve_bench
from mqlab.bench.serve_result import ServeResult
from mqlab.bench.target import server_pid
from mqlab.errors import ConfigError

TOTALS = """date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency duration completed
failed total_input_tokens total_output_tokens request_throughput request_goodput output_throughput total_token_throughput
max_output_tokens_per_s max_concurrent_requests"""
LATENCIES = {f"{point}_{name}_ms" for point in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl", "e2el")}
DETAILS = {"input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors"}

SMALL = DatasetConfig(input_len=4, output_len=6)
FOUR_A_TIME = Script(texts=["four"] * 3, gap_s=0.02, usage={"prompt_tokens": 9, "completion_tokens": 12})


def config(mock: Mock, **options: Any) -> LoadConfig:
    return LoadConfig(**({"base_url": mock.url, "num_prompts": 6, "disable_tqdm": True} | options))


def test_counts_are_the_servers_and_the_record_has_the_usual_keys() -> None:
    with mock_openai(FOUR_A_TIME) as mock:
        result = serve_bench(config(mock, goodput=["ttft:60000", "tpot:60000"], metadata=["gpu=none"], percentile_metrics="e2el"), SMALL)
    assert (len(result.good), result.input_tokens, result.output_tokens) == (6, 54, 72)
    assert result.counted_by == {"usage": 6} and result.itl_estimated
    spread = result.spreads
    assert spread["inter_chunk"].mean == pytest.approx(4 * (spread["tpot"].mean or 0))
    record = json.loads(json.dumps(result.as_record(detailed=True), allow_nan=False))
    assert set(record) >= {*TOTALS.split(), *LATENCIES, *DETAILS, "gpu"}
    assert record["request_goodput"] == record["request_throughput"] > 0
    assert (record["request_rate"], record["model_id"], record["completed"], record["failed"]) == ("inf", "mock-model", 6, 0)
    assert record["input_lens"] == [9] * 6 and [len(gaps) for gaps in record["itls"]] == [2] * 6
    assert record["meta"] and record["seed"] == result.dataset.seed


def test_what_the_server_is_asked_for() -> None:
    with mock_openai(FOUR_A_TIME) as mock:
        serve_bench(config(mock, num_prompts=2, num_warmups=2, extra_body='{"top_k": 3}'), SMALL)
    assert len(mock.bodies) == 4 and len({tuple(body["prompt"]) for body in mock.bodies}) == 4, "the warm-up has prompts of its own"
    body = mock.bodies[0]
    assert len(body.pop("prompt")) == 4
    assert body == {
        "model": "mock-model",
        "max_tokens": 6,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "top_k": 3,
    }


def test_every_run_has_prompts_of_its_own_unless_the_seed_is_given() -> None:
    with mock_openai(FOUR_A_TIME) as mock:
        for seed in (None, 7, 7):
            serve_bench(config(mock, num_prompts=1, num_warmups=0), replace(SMALL, seed=seed))
    one, seeded, again = (body["prompt"] for body in mock.bodies)
    assert one != seeded == again


def test_a_warm_prefix_cache_is_shown_and_warned_of() -> None:
    usage = {"prompt_tokens": 8, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 6}}
    with mock_openai(Script(usage=usage)) as mock:
        result = serve_bench(config(mock), SMALL)
    assert result.cached_share == 0.75
    assert "75% of the prompt tokens were in the server's prefix cache" in result.warnings
    assert "75.0%" in str(result)


def test_no_usage_and_no_tokenizer_is_flagged() -> None:
    with mock_openai(Script()) as mock:
        result = serve_bench(config(mock), SMALL)
    assert result.counted_by == {"events": 6} and result.input_tokens == 24
    assert any("token counts are estimated" in text for text in result.warnings)
    assert result.cached_share is None and "not told" in str(result)


def test_a_tokenizer_counts_where_the_server_does_not(model_folder: Path) -> None:
    with mock_openai(Script(texts=["Hello", " world, this is"])) as mock:
        result = serve_bench(config(mock, tokenizer=str(model_folder)), SMALL)
    assert result.counted_by == {"tokenizer": 6} and result.output_tokens > 12
    assert result.tokenizer == str(model_folder)


def test_chat_sends_text(model_folder: Path) -> None:
    with mock_openai(FOUR_A_TIME) as mock:
        result = serve_bench(config(mock, backend="openai-chat", tokenizer=str(model_folder)), SMALL)
    assert len(result.good) == 6
    (message,) = mock.bodies[0]["messages"]
    assert message["role"] == "user" and isinstance(message["content"], str) and mock.bodies[0]["max_completion_tokens"] == 6


def test_chat_without_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes text"):
        make_body(Sample((1, 2), 2, 3), LoadConfig(backend="openai-chat"), "m", ignore_eos=False)


def test_failures_are_counted_listed_and_in_no_latency(capsys: pytest.CaptureFixture[str]) -> None:
    with mock_openai(Script(status=500)) as mock:
        assert main(config(mock, num_warmups=0), SMALL) == 1, "a run of failures only has failed"
    shown = capsys.readouterr().out
    assert "Failed requests:                             6" in shown
    assert "failed 6 times: HTTP 500" in shown and "Mean TTFT (ms):                              -" in shown


def test_a_server_that_is_not_there_is_told_at_once_or_counted() -> None:
    nowhere = LoadConfig(port=1, num_prompts=2, num_warmups=0, disable_tqdm=True)
    with pytest.raises(ConfigError, match="does not say what is served"):
        serve_bench(nowhere, SMALL)
    result = serve_bench(replace(nowhere, model="mock-model"), SMALL)
    assert result.failed == 2 and result.exit_code == 1 and list(result.errors.values()) == [2]
    assert json.dumps(result.as_record(detailed=True), allow_nan=False)


def test_results_are_written_and_appended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mock_openai(FOUR_A_TIME) as mock:
        load = config(mock, save_result=True, result_dir=str(tmp_path / "new"), result_filename="r.json", max_start_lag=1e9)
        assert main(load, SMALL) in (0, 3)
        assert main(replace(load, append_result=True, save_detailed=True), SMALL) in (0, 3)
    first, second = map(json.loads, (tmp_path / "new" / "r.json").read_text().splitlines())
    assert "itls" not in first and len(second["itls"]) == 6
    assert "written to" in capsys.readouterr().out


def fake(index: int, due_s: float, lag_s: float = 0.0, **changes: Any) -> Timed:
    due, woken = int(due_s * 1e9), int((due_s + lag_s) * 1e9)
    record = Record(index, due, woken, woken, woken + 10**9, [woken + 10**8, woken + 10**9], [], 5, 2)
    return replace(measure(record, 0, from_schedule=True), **changes)


def result_of(requests: list[Timed], share: float = 0.1, foreign: float = 0.0, **options: Any) -> ServeResult:
    load = LoadConfig(**options)
    cpu = CpuReport(1.0, 2, {"self": 0.1}, foreign)
    return ServeResult(
        load, DatasetConfig(dataset_name="random", seed=1), "http://x", "m", None, requests, [WorkerLoad(1, share, 1.0, share, 0.0)], cpu
    )


def test_a_load_process_at_its_limit_voids_the_run() -> None:
    requests = [fake(k, k / 10) for k in range(20)]
    fine, busy = result_of(requests), result_of(requests, share=0.95)
    assert not fine.void and fine.exit_code == 0
    assert busy.exit_code == 3 and "used 95% of a CPU" in busy.void[0]
    assert "VOID: load process 1" in str(busy) and "VOID" in repr(busy) and "VOID" in busy._repr_html_()
    assert busy.as_record()["void"] == busy.void


def test_late_starts_void_a_run_that_has_times() -> None:
    late = [fake(k, k / 10, lag_s=0.2) for k in range(20)]
    assert "more than 0.200 s late" in result_of(late).void[0]
    assert not result_of(late, max_start_lag=0.3).void
    assert not result_of([fake(k, 0.0, lag_s=0.2) for k in range(20)]).void, "all at once cannot all be first"


def test_a_rate_that_was_not_reached_is_warned_of() -> None:
    result = result_of([fake(k, k / 10, lag_s=k / 50) for k in range(1, 21)], max_start_lag=9.0)
    asked, achieved = result.rates
    assert asked == pytest.approx(10) and achieved == pytest.approx(20 / 2.4)
    assert "requests started at 8.33/s where 10.00/s were asked for" in result.warnings
    assert result.spreads["ttft"].mean == pytest.approx(1e3 * (0.1 + np.mean([k / 50 for k in range(1, 21)]))), "the wait is in the latency"
    assert result.spreads["ttft_sent"].mean == pytest.approx(100)


def test_foreign_programs_are_warned_of() -> None:
    (warning,) = result_of([fake(0, 0)], foreign=0.4).warnings
    assert warning.startswith("other programs used 40% of this machine")


def test_forms_of_a_result() -> None:
    result = result_of([fake(k, k / 10) for k in range(5)] + [fake(5, 0.5, error="<b>lost</b>")])
    frame = result.to_pandas()
    assert len(frame) == 6 and frame["ttft"].tolist()[:5] == pytest.approx([0.1] * 5)
    assert "<b>lost" not in result._repr_html_() and "&lt;b&gt;lost" in result._repr_html_()
    assert len(result.plot().figure.axes) == 2
    assert "1 of 6 requests failed" in result.warnings and result.exit_code == 0


def test_a_server_on_this_machine_is_watched_and_not_foreign() -> None:
    with mock_openai(FOUR_A_TIME) as mock:
        assert server_pid(mock.url) == os.getpid()
        assert set(serve_bench(config(mock, num_prompts=1), SMALL).cpu.share) == {"server"}
    assert server_pid(mock.url) is None and server_pid("https://example.org") is None


def test_a_trace_keeps_its_times_unless_a_rate_is_given() -> None:
    samples = [Sample("a", 1, 1, at_s=at) for at in (0.0, 0.5, 4.0)]
    assert due_times(LoadConfig(), samples, 1).tolist() == [0.0, 0.5, 4.0]
    assert due_times(LoadConfig(request_rate=3.0), samples, 1)[-1] == pytest.approx(1.0)
    ramp = LoadConfig(ramp_up_strategy="linear", ramp_up_start_rps=1, ramp_up_end_rps=2, burstiness=math.inf)
    assert due_times(ramp, samples, 1).tolist() == pytest.approx([1.0, 1 + 2 / 3, 1 + 2 / 3 + 0.5])


def test_addresses() -> None:
    assert LoadConfig(port=9).url == "http://127.0.0.1:9"
    assert LoadConfig(host="::1").url == "http://[::1]:8000"
    assert LoadConfig(base_url="https://x/").url == "https://x"
    assert (LoadConfig(backend="openai-chat").path, LoadConfig(endpoint="/x").path) == ("/v1/chat/completions", "/x")
    assert LoadConfig(max_concurrency=3).from_schedule is False is not LoadConfig().from_schedule


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"request_rate": 0.0}, "--request-rate=0.0 must be above 0"),
        ({"burstiness": math.nan}, "--burstiness=nan must be above 0"),
        ({"goodput": ["ttft=3"]}, "must be pairs of ttft"),
        ({"goodput": ["itl:3"]}, "must be pairs of ttft"),
        ({"metadata": ["x"]}, "must be pairs KEY=VALUE"),
        ({"metric_percentiles": "99,x"}, r"must be numbers in \[0, 100\]"),
        ({"percentile_metrics": "ttft,x"}, "must be names of"),
        ({"extra_body": "[1]"}, "must be a JSON object"),
        ({"ramp_up_strategy": "linear"}, "needs --ramp-up-start-rps"),
        ({"base_url": "x"}, "must be of an address like http"),
        ({"base_url": "ftp://x"}, "must be of an address like http"),
        ({"base_url": "http://"}, "must be of an address like http"),
        ({"base_url": "http://[x"}, "must be of an address like http"),
        ({"base_url": "http://x:y"}, "must be of an address like http"),
        ({"host": ""}, "--host='' must be of an address like http"),
        ({"num_workers": 0}, "must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoadConfig(**options)


def test_limits_by_name_of_a_scenario() -> None:
    assert LoadConfig(goodput=("llama-3.1-8b-interactive", "e2el:9000")).limits == {"ttft": 500, "tpot": 30, "e2el": 9000}


def test_the_file_has_vllms_name(tmp_path: Path) -> None:
    path = save(result_of([fake(0, 0)], request_rate=2.5, max_concurrency=4), tmp_path)
    assert path.name.startswith("openai-2.5qps-concurrency4-m-") and json.loads(path.read_text())["num_prompts"] == 1
    assert save(result_of([fake(0, 0)], label="a/b"), tmp_path).name.startswith("a-b-infqps-m-")


def test_a_place_that_cannot_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for options, message in (
        ({"result_dir": str(tmp_path / "file"), "save_result": True}, "--result-dir=.* cannot be made a folder"),
        ({"result_dir": str(tmp_path), "result_filename": "no/r.json"}, "--result-filename=.* its folder does not exist"),
        ({"result_dir": str(tmp_path.parent), "result_filename": tmp_path.name}, "--result-filename=.* is a folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            main(LoadConfig(port=1, **options), SMALL)
    assert result_folder(LoadConfig(result_dir=str(tmp_path / "unused"))) == tmp_path / "unused"
    assert not (tmp_path / "unused").exists(), "nothing is written, so nothing is made"


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A listener that answers whatever comes with the same bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                peer, _ = server.accept()
                with peer:
                    if not peer.recv(65536):
                        return
                    peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        host, port = server.getsockname()
        try:
            yield f"http://{host}:{port}"
        finally:
            socket.create_connection((host, port)).close()
            thread.join()


PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"


@pytest.mark.parametrize(
    ("answer", "failure"),
    [(PAGE, "it came as text/html: are --base-url and --endpoint an OpenAI API's?"), (b"SSH-2.0-OpenSSH\r\n", "Bad status line")],
    ids=["a web page", "no HTTP"],
)
def test_what_is_no_openai_server_is_told(answer: bytes, failure: str) -> None:
    with answering(answer) as url:
        load = LoadConfig(base_url=url, num_prompts=1, num_warmups=0, disable_tqdm=True)
        with pytest.raises(ConfigError, match="does not say what is served"):
            serve_bench(load, SMALL)
        (error,) = serve_bench(replace(load, model="m"), SMALL).errors
    assert failure in error
