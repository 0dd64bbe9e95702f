"""Load processes against a scripted server: what is sent, when, and what is noted of every kind of end."""

from __future__ import annotations

import json
import math
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mock_openai import Mock, Script, mock_openai

from mqlab.bench.arrivals import arrival_times
from mqlab.bench.load.driver import Load, LoadOutcome, choose_workers, run_load
from mqlab.bench.load.messages import Failed, Progress, read_frame, write_frame
from mqlab.contract.processes import ended
from mqlab.contract.waiting import until_sync
from mqlab.errors import BenchError

USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}


def load_for(mock: Mock, count: int, **options: Any) -> Load:
    bodies = [json.dumps({"prompt": f"{index}"}).encode() for index in range(count)]
    return Load(**({"url": f"{mock.url}/v1/completions", "headers": {}, "bodies": bodies, "due_s": [0.0] * count} | options))


def run_against(script: Script, count: int, workers: int = 1, **options: Any) -> tuple[LoadOutcome, Mock]:
    with mock_openai(script) as mock:
        return run_load(load_for(mock, count, **options), workers), mock


@pytest.mark.parametrize(("rate", "burstiness", "workers"), [(600.0, math.inf, 1), (600.0, 1.0, 2)])
def test_300_requests_are_all_under_way_at_once(rate: float, burstiness: float, workers: int) -> None:
    due = arrival_times(300, rate, burstiness, seed=5)
    outcome, mock = run_against(Script(hold=300, usage=USAGE), 300, workers, due_s=due.tolist(), timeout_s=30.0)
    assert [record.error for record in outcome.records] == [""] * 300
    assert [record.index for record in outcome.records] == list(range(300))
    assert sorted(int(body["prompt"]) for body in mock.bodies) == list(range(300))
    assert mock.peak == 300, "a pool of 100 connections would hold them back for ever"
    planned = [(record.due_ns - outcome.start_ns) / 1e9 for record in outcome.records]
    assert planned == pytest.approx(due.tolist(), abs=1e-8)
    assert all(record.due_ns <= record.woken_ns <= record.sent_ns < record.end_ns for record in outcome.records)
    assert len(outcome.loads) == workers and all(one.cpu_s > 0 for one in outcome.loads)


def test_all_at_once_needs_nobody_to_finish() -> None:
    outcome, mock = run_against(Script(hold=150), 150, timeout_s=30.0)
    assert mock.peak == 150 and not any(record.error for record in outcome.records)


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_concurrency_is_bounded_over_all_processes(workers: int) -> None:
    outcome, mock = run_against(Script(delay_s=0.02), 12, workers, max_concurrency=3)
    assert mock.peak <= 3 and len(mock.bodies) == 12
    assert len(outcome.loads) == min(workers, 3)
    assert max(record.sent_ns - record.woken_ns for record in outcome.records) > 0.02e9, "who waits in the client is seen to"


def test_warm_up_comes_first_and_is_in_no_record() -> None:
    order: list[int] = []
    with mock_openai(Script(usage=USAGE)) as mock:
        load = load_for(mock, 4, warm_up=[b'{"prompt": "100"}'] * 2, headers={"Authorization": "Bearer key"})
        outcome = run_load(load, 1, on_start=lambda: order.extend(int(body["prompt"]) for body in mock.bodies))
    assert order == [100, 100] and len(mock.bodies) == 6 and len(outcome.records) == 4
    assert {headers["Authorization"] for headers in mock.headers} == {"Bearer key"}
    assert outcome.warm_up_errors == []


def test_usage_and_stamps_of_a_whole_answer() -> None:
    outcome, _ = run_against(Script(usage=USAGE), 1, keep_text=True)
    (record,) = outcome.records
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens, record.text) == (5, 3, 2, "abc")
    assert len(record.event_ns) == 3 and record.sent_ns < record.event_ns[0] <= record.event_ns[-1] <= record.end_ns


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (Script(status=503), 'HTTP 503: {"error": {"message": "no room"}}'),
        (Script(ending="error"), "error event: the engine died"),
        (Script(ending="cut"), "ended after 3 events"),
        (Script(ending="silence"), "no whole answer within 0.3 s"),
    ],
    ids=["status", "error event", "cut", "silence"],
)
def test_a_failure_is_told_and_is_no_answer(script: Script, message: str) -> None:
    outcome, _ = run_against(script, 3, timeout_s=0.3, warm_up=[b"{}"])
    assert all(message in record.error for record in outcome.records)
    assert len(outcome.warm_up_errors) == 1 and message in outcome.warm_up_errors[0]


def test_a_refused_connection_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    outcome = run_load(Load(f"http://127.0.0.1:{port}/v1/completions", {}, [b"{}"] * 3, [0.0] * 3), 1)
    assert all("Cannot connect" in record.error for record in outcome.records)


def test_what_an_interpreter_prints_at_its_start_is_no_frame(noisy: None) -> None:
    outcome, _ = run_against(Script(usage=USAGE), 2)
    assert [record.error for record in outcome.records] == ["", ""]


def test_progress_is_told_while_it_runs() -> None:
    seen: list[int] = []
    with mock_openai(Script(delay_s=0.3)) as mock:
        run_load(load_for(mock, 3, due_s=[0.0, 0.1, 0.2]), 2, on_progress=seen.append)
    assert seen and seen == sorted(seen) and max(seen) <= 3


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if not ended(child) and "mqlab.bench.load.worker" in child.cmdline()]


def kill_one(ended: int) -> None:
    for child in children()[:1]:
        child.kill()


def test_a_load_process_that_dies_is_an_error_and_leaves_no_other() -> None:
    with mock_openai(Script(ending="silence")) as mock, pytest.raises(BenchError, match="ended with exit code -9 before its job was done"):
        run_load(load_for(mock, 2, due_s=[0.0, 9.0]), 2, on_progress=kill_one)
    assert not children()


def test_an_interrupt_ends_the_load_processes() -> None:
    def interrupt(ended: int) -> None:
        raise KeyboardInterrupt

    with mock_openai(Script(ending="silence")) as mock, pytest.raises(KeyboardInterrupt):
        run_load(load_for(mock, 1), 1, on_progress=interrupt)
    assert not children()


PARENT = """
import sys
from mqlab.bench.load.driver import Load, run_load
def tell(ended):
    print("running", flush=True)
run_load(Load(sys.argv[1], {}, [b"{}"], [0.0]), 1, on_progress=tell)
"""


@pytest.fixture
def orphaned() -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """A benchmark in a process of its own, and its load process."""
    with mock_openai(Script(ending="silence")) as mock:
        command = [sys.executable, "-c", PARENT, f"{mock.url}/v1/completions"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None and parent.stdout.readline() == b"running\n"
            (worker,) = psutil.Process(parent.pid).children()
            yield parent, worker
            parent.kill()


def test_a_load_process_ends_with_its_parent(orphaned: tuple[subprocess.Popen[bytes], psutil.Process]) -> None:
    parent, worker = orphaned
    parent.send_signal(signal.SIGKILL)
    until_sync(lambda: ended(worker))


@pytest.mark.parametrize(
    ("rate", "streams", "cores", "workers"),
    [(10, 10, 64, 1), (1000, 10, 64, 4), (math.inf, 5000, 64, 5), (1e6, 10**6, 8, 2), (1e6, 10**6, 2, 1)],
)
def test_processes_follow_the_load_and_leave_the_cores_to_the_server(rate: float, streams: int, cores: int, workers: int) -> None:
    assert choose_workers(rate, streams, cores) == workers


def test_frames_survive_and_a_torn_one_is_the_end(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    with path.open("wb", buffering=0) as file:
        write_frame(file, Progress(3))
        write_frame(file, Failed("x" * 100_000))
    with path.open("rb", buffering=0) as file:
        assert read_frame(file) and read_frame(file) and read_frame(file) is None
    path.write_bytes(path.read_bytes()[:-1])
    with path.open("rb", buffering=0) as file:
        assert read_frame(file) and read_frame(file) is None
