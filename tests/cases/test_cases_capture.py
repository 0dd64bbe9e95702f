"""Profiling a system at work (C17, C36, C74): both sides are seen, labelled, and go on as if nobody looked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from openai import OpenAI
from serving import Process, echo_command, mqlab_command, running

from mqlab.contract.waiting import until_sync
from mqlab.errors import ProfileError
from mqlab.lab.session import Session
from mqlab.probes import pyspy
from mqlab.record.capture import Capture

PROMPT = "The capital of France is the city that"


@pytest.fixture
def server(model_folder: Path, tmp_path: Path) -> Iterator[Process]:
    """An echo engine behind HTTP, two processes."""
    with running(echo_command(model_folder, device_time=0.001), tmp_path) as process:
        yield process.wait_ready()
        if process.popen.poll() is None:
            process.stop(10)


def targets(server: Process) -> dict[str, int]:
    return {"engine": server.engine_pid, "front": server.popen.pid}


@contextmanager
def streams(server: Process, count: int = 4) -> Iterator[list[str]]:
    """Streams one after another in ``count`` threads until the block ends; their texts."""
    texts: list[str] = []
    done = threading.Event()

    def read(client: OpenAI) -> None:
        while not done.is_set():
            answer = client.completions.create(model="echo", prompt=PROMPT, max_tokens=100, stream=True, extra_body={"ignore_eos": True})
            texts.append("".join(chunk.choices[0].text for chunk in answer if chunk.choices))

    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=20) as client, ThreadPoolExecutor(count) as pool:
        readers = [pool.submit(read, client) for _ in range(count)]
        try:
            yield texts
        finally:
            done.set()
    for reader in readers:
        reader.result()


def categories(capture: Capture, role: str) -> set[str]:
    return {row.category for row in capture.categories() if row.role == role}


def test_a_capture_under_load_shows_both_sides_and_changes_no_answer(server: Process, tmp_path: Path) -> None:
    with streams(server) as texts:
        until_sync(lambda: len(texts) >= 4)
        capture = pyspy.record(targets(server), 3, tmp_path / "capture", children=True)
        before = len(texts)
        until_sync(lambda: len(texts) >= before + 4)
    assert len(set(texts)) == 1
    assert [part.role for part in capture.parts][:2] == ["engine", "front"] and capture.problems == ()
    assert {"scheduler", "zmq"} <= categories(capture, "engine") and {"asyncio", "http"} <= categories(capture, "front")
    assert json.loads(capture.speedscope.read_text())["profiles"]
    assert not [child for child in psutil.Process().children(recursive=True) if child.name() == "py-spy"]


def test_a_capture_of_an_engine_that_died_says_so(server: Process, tmp_path: Path) -> None:
    psutil.Process(server.engine_pid).send_signal(signal.SIGKILL)
    until_sync(lambda: not psutil.pid_exists(server.engine_pid) or psutil.Process(server.engine_pid).status() == psutil.STATUS_ZOMBIE)
    begun = time.monotonic()
    with pytest.raises(ProfileError, match=f"process {server.engine_pid} is not running"):
        pyspy.record({"engine": server.engine_pid}, 30, tmp_path / "capture")
    assert time.monotonic() - begun < 10


def answer(server: Process) -> str:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        return client.completions.create(model="echo", prompt=PROMPT, max_tokens=8).choices[0].text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a right away")
def test_where_attaching_is_forbidden_one_line_says_what_to_do_and_another_way_works(server: Process, tmp_path: Path) -> None:
    before, folder, begun = answer(server), tmp_path / "capture", time.monotonic()
    profile = mqlab_command("profile", str(server.popen.pid), "--seconds", "30", "--folder", str(folder))
    forbidden = ["setpriv", "--inh-caps=-all", "--bounding-set=-sys_ptrace", *profile]
    done = subprocess.run(forbidden, capture_output=True, text=True, timeout=60, check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and time.monotonic() - begun < 30, "it does not sample on what it may not see"
    assert all(words in last for words in ("may not attach", "ptrace_scope", "--cap-add=SYS_PTRACE", "start_profile"))
    assert "Traceback" not in done.stderr and not folder.exists()
    assert answer(server) == before and server.popen.poll() is None
    with Session.attach(server.popen.pid) as session:
        session.call("start_profile", str(tmp_path / "engine.pstats"))
        answer(server)
        assert Path(session.call("stop_profile")).stat().st_size > 0
