"""Ranks that torchrun starts: one serves, the others work for it, and all end together."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from safetensors.numpy import load_file, save_file
from serving import LINE, Process, running
from small_model import write_small_model

from mqlab import cli
from mqlab.config import EngineConfig, Settings, Torchrun, check_ranks
from mqlab.contract.processes import gone
from mqlab.contract.waiting import until_sync
from mqlab.errors import CallError, ConfigError
from mqlab.lab.session import Session
from mqlab.model.parallel.torchrun import remote_ranks
from mqlab.probes.running import find, pids
from mqlab.record.capture import Capture

RANKS = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
ENVIRONMENT = {**RANKS, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
NONSENSE = [("RANK", "x", "RANK='x' must be a number"), ("RANK", "4", "must be below WORLD_SIZE=4")]
PROMPT = {"model": "three-heads", "prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0}


def test_what_torchrun_tells_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ENVIRONMENT, "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert Settings.read().torchrun is None
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    place = {"rank": 3, "world_size": 4, "local_rank": 1, "local_world_size": 2, "master_addr": "10.0.0.1", "master_port": 29500}
    assert Settings.read().torchrun == Torchrun(**place, hosts_store=True)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert Settings.read().torchrun == Torchrun(**place, attempt=2, launched=True)


@pytest.mark.parametrize(("name", "value", "said"), NONSENSE)
def test_nonsense_is_refused(name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, text in {**ENVIRONMENT, name: value}.items():
        monkeypatch.setenv(key, text)
    with pytest.raises(ConfigError, match=said):
        Settings.read()


def test_there_must_be_a_process_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, text in ENVIRONMENT.items():
        monkeypatch.setenv(key, text)
    torchrun = Settings.read().torchrun
    assert torchrun is not None
    with pytest.raises(ConfigError, match="--tensor-parallel-size=2 must be 4, the number of processes of torchrun"):
        check_ranks(EngineConfig(tensor_parallel_size=2), torchrun)
    with pytest.raises(ConfigError, match="RANK=3: under torchrun rank 0 alone has an engine"):
        remote_ranks(EngineConfig(tensor_parallel_size=4), torchrun)


@contextmanager
def torchrun(model: Path, ranks: int, folder: Path) -> Iterator[Process]:
    """Two processes of ``mqlab serve`` with this setting."""
    serve = ["serve", str(model), "--tensor-parallel-size", str(ranks), "--port", "0", "--num-threads", "1", "--num-kv-blocks", "64"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "mqlab", *serve]
    with running(command, folder) as process:
        try:
            yield process
        finally:  # torchrun that is killed leaves its processes behind
            for one in psutil.Process(process.popen.pid).children(recursive=True) if process.popen.poll() is None else ():
                one.kill()


def ranks_of(torchrun: int) -> list[psutil.Process]:
    """The processes that torchrun has started, by rank."""
    return sorted(psutil.Process(torchrun).children(), key=lambda process: process.environ()["RANK"])


@pytest.mark.full
def test_two_processes_serve_one_model_and_stop_with_the_first(tmp_path: Path, model_folder: Path) -> None:
    model = write_small_model(tmp_path / "three-heads", model_folder, kv_heads=3)
    with torchrun(model, 2, tmp_path) as process:
        process.wait_ready(100)
        server, worker = ranks_of(process.popen.pid)
        answers = [httpx.post(f"{process.url}/v1/completions", json=PROMPT, timeout=30).json() for _ in range(2)]
        assert answers[0]["choices"] == answers[1]["choices"] and answers[0]["usage"]["completion_tokens"] == 8
        assert httpx.get(f"{process.url}/health", timeout=30).status_code == 200
        server.terminate()
        assert process.popen.wait(30) == 0
        assert gone(worker.pid) and gone(process.engine_pid)
        assert "Traceback" not in process.text()


@pytest.mark.full
def test_a_worker_that_is_killed_ends_all(tmp_path: Path, model_folder: Path) -> None:
    model = write_small_model(tmp_path / "three-heads", model_folder, kv_heads=3)
    with torchrun(model, 2, tmp_path) as process:
        process.wait_ready(100)
        server, worker = ranks_of(process.popen.pid)
        worker.kill()
        assert process.popen.wait(60) != 0
        until_sync(lambda: gone(server.pid) and gone(process.engine_pid))


@pytest.mark.full
def test_too_many_processes_are_told(tmp_path: Path, model_folder: Path) -> None:
    with torchrun(model_folder, 3, tmp_path) as process:
        assert process.popen.wait(60) != 0
        assert "mqlab: --tensor-parallel-size=3 must be 2, the number of processes of torchrun" in process.text()
        assert LINE.search(process.text()) is None


@pytest.mark.full
def test_whoever_looks_from_outside_sees_the_other_rank(tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_small_model(tmp_path / "three-heads", model_folder, kv_heads=3)
    with torchrun(model, 2, tmp_path) as process:
        process.wait_ready(100)
        server, worker = ranks_of(process.popen.pid)
        assert pids(find(str(server.pid)))["rank-1"] == worker.pid
        assert cli.main(["profile", str(server.pid), "--seconds", "1", "--folder", str(tmp_path / "capture"), "--idle"]) == 0
        assert Capture.load(tmp_path / "capture").part("rank-1").pid == worker.pid
        server.terminate()
        assert process.popen.wait(30) == 0


@pytest.mark.full
def test_a_launcher_that_is_killed_takes_all_with_it(
    tmp_path: Path, runtime_dir: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    runtime = runtime_dir / "killed"  # a short path, for those of sockets
    runtime.mkdir()
    request.addfinalizer(runtime.rmdir)
    monkeypatch.setenv("MQLAB_RUNTIME", str(runtime))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of torchrun itself
    model = write_small_model(tmp_path / "three-heads", model_folder, kv_heads=3)
    with torchrun(model, 2, tmp_path) as process:
        process.wait_ready(100)
        server, worker = ranks_of(process.popen.pid)
        assert any(runtime.iterdir())
        process.popen.kill()
        until_sync(lambda: all(map(gone, (server.pid, worker.pid, process.engine_pid))), timeout=30)
        until_sync(lambda: not any(runtime.iterdir()))


@pytest.mark.full
def test_an_engine_outlives_a_load_that_its_ranks_refuse(tmp_path: Path, model_folder: Path) -> None:
    """They leave what they do together, and wait for the next model."""
    model = write_small_model(tmp_path / "three-heads", model_folder, kv_heads=3)
    broken = write_small_model(tmp_path / "broken", model_folder, kv_heads=3) / "model.safetensors"
    save_file({name: weight for name, weight in load_file(broken).items() if name != "lm_head.weight"}, broken)
    with torchrun(model, 2, tmp_path) as process:
        process.wait_ready(100)
        server, worker = ranks_of(process.popen.pid)
        before = httpx.post(f"{process.url}/v1/completions", json=PROMPT, timeout=30).json()["choices"]
        with Session.attach(server.pid, name="other") as lab:
            with pytest.raises(CallError, match=r"has no tensor 'lm_head\.weight'"):
                lab.load(str(broken.parent))
            assert lab.load(str(model)).state == "ready"
        assert worker.is_running()
        again = httpx.post(f"{process.url}/v1/completions", json=PROMPT, timeout=30).json()["choices"]
        assert again == before
        server.terminate()
        assert process.popen.wait(30) == 0
