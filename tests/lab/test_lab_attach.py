"""Engines of others: seen, attached to, looked at, left, ended; and servers that outlive the kernel which started them."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from IPython.core.interactiveshell import InteractiveShell
from serving import Process, echo_command, echo_server, running
from tiny_gguf import tiny_weights, write_gguf

from mqlab.config import EngineConfig, Timing
from mqlab.contract.processes import gone
from mqlab.errors import ConfigError, EngineStartError
from mqlab.lab.session import Session
from mqlab.probes import running as engines
from mqlab.wire.registry import Registry

if TYPE_CHECKING:
    from conftest import Kernel

Magic = Callable[[str], str]
Start = Callable[..., Session]
HELLO = "Hello there world"


@pytest.fixture(scope="module")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Somebody's server, which stays up."""
    with echo_server(model_folder, tmp_path_factory.mktemp("server"), topology="mq") as process:
        yield process


@pytest.fixture
def second(model_folder: Path, tmp_path: Path) -> Iterator[Process]:
    """Another one."""
    with running(echo_command(model_folder, topology="inproc"), tmp_path) as process:
        yield process.wait_ready()


def test_attach_finds_the_only_other_engine(server: Process, shell: InteractiveShell, magic: Magic) -> None:
    magic("serve smollm2-135m -o own --topology v1")
    printed = magic("attach")
    lab = shell.user_ns["lab"]
    assert printed.startswith("lab = <Session lab: echo over mq, ready") and "attached" in printed
    assert lab.attached and lab.info.pid == server.engine_pid and lab.url == server.url
    assert lab.generate_sync(HELLO, max_tokens=3).text == HELLO and lab.stats().generation_tokens >= 3
    assert "attached already" in magic("attach") and shell.user_ns["lab"] is lab
    assert magic("stop") == "lab detached; its engine runs on\n"
    assert server.popen.poll() is None and not shell.user_ns["own"].stopped


def test_an_attached_session_can_do_what_others_can(server: Process, shell: InteractiveShell, magic: Magic, tmp_path: Path) -> None:
    magic(f"attach {server.url} -o there")
    there = shell.user_ns["there"]
    assert "echo over mq" in magic("ps").splitlines()[0]
    assert "echo · mq" in repr(there.dashboard()) and "new tokens" in magic("metrics there")
    there.generate_sync(HELLO, max_tokens=3)
    assert "finished" in magic("trace there")
    shown = magic(f"profile there --seconds 1 --idle --folder {tmp_path / 'capture'}")
    assert shown.startswith("Capture(front, engine")
    assert {part.role: part.pid for part in shell.user_ns["capture"].parts} == there.pids
    magic("bench there --num-prompts 4 --input-len 4 --output-len 4 --quiet")
    assert len(shell.user_ns["result"].good) == 4


def test_a_pid_does_for_a_name(server: Process, magic: Magic) -> None:
    pid = server.popen.pid
    assert f"pid {pid}" in magic(f"metrics {pid}")
    assert magic(f"trace {pid}").startswith("Trace")
    magic(f"bench {pid} --num-prompts 4 --input-len 4 --output-len 4 --quiet")
    magic(f"bench {server.url} --num-prompts 4 --input-len 4 --output-len 4 --quiet")
    assert server.popen.poll() is None and "no session in this kernel" in magic("ps")


def test_what_cannot_be_attached_to_costs_no_session(server: Process, shell: InteractiveShell, magic: Magic) -> None:
    magic("serve smollm2-135m")
    lab = shell.user_ns["lab"]
    for line, words in (
        (f"attach {lab.info.pid}", "session of this kernel already: lab"),
        ("attach 99999999", f"no engine '99999999' is running; there are:\n(.|\n)*{server.popen.pid}"),
        ("attach nonsense", "no engine 'nonsense'"),
    ):
        with pytest.raises(ConfigError, match=words):
            magic(line)
    assert not lab.stopped and shell.user_ns["lab"] is lab
    assert "the one before was stopped" in magic(f"attach {server.popen.pid}") and lab.stopped


def test_several_must_be_told_apart_and_any_can_be_ended(server: Process, second: Process, shell: InteractiveShell, magic: Magic) -> None:
    with pytest.raises(ConfigError, match="which one"):
        magic("attach")
    listed = magic("ps")
    assert "no session" in listed and all(str(each.popen.pid) in listed for each in (server, second))
    magic(f"attach {second.popen.pid}")
    assert magic(f"stop {second.popen.pid}") == f"engine echo (pid {second.popen.pid}) stopped\n"
    assert second.popen.wait(10) == 0 and server.popen.poll() is None
    assert magic("stop") == "lab detached; its engine had ended\n"


@pytest.fixture
def secluded(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A runtime folder that no other engine is known in."""
    with tempfile.TemporaryDirectory(dir=runtime_dir) as folder:
        monkeypatch.setenv("MQLAB_RUNTIME", folder)
        yield


@pytest.mark.usefixtures("secluded")
def test_stop_all_ends_own_and_others(model_folder: Path, tmp_path: Path, shell: InteractiveShell, magic: Magic) -> None:
    magic("serve smollm2-135m -o own")
    own = shell.user_ns["own"]
    with running(echo_command(model_folder, topology="inproc"), tmp_path) as other:
        pid = other.wait_ready().popen.pid
        assert magic("stop --all") == f"own stopped\nengine echo (pid {pid}) stopped\n"
        assert own.stopped and other.popen.wait(10) == 0
    assert magic("stop --all") == "nothing runs\n" and Registry().entries() == []


@pytest.mark.parametrize("topology", ["inproc", "mq"])
def test_a_sessions_own_pid_means_the_session(shell: InteractiveShell, magic: Magic, topology: str) -> None:
    magic(f"serve smollm2-135m --topology {topology} -o here")
    pid = shell.user_ns["here"].info.pid
    assert magic(f"metrics {pid}").startswith("here:")
    assert magic(f"stop {pid}") == "here stopped\n" and shell.user_ns["here"].stopped


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("topology", ["inproc", "mq"])
def test_processes_of_a_session_are_known_from_outside(model_folder: Path, start: Start, topology: str, record: bool) -> None:
    lab = start(topology, record=record)
    assert engines.pids(lab._hosted.entry) == lab.pids
    lab.stop()
    with pytest.raises(ConfigError, match="has just ended"):
        engines.pids(lab._hosted.entry)


def test_two_looks_at_one_engine_do_not_write_over_each_other(start: Start) -> None:
    lab = start("inproc")
    with Session.attach(lab.info.pid) as first, Session.attach(lab.info.pid) as second:
        assert first.metrics().rows and second.metrics().rows
        lab.generate_sync(HELLO, max_tokens=3)
    assert len(lab.trace().to_pandas("requests")) == 1
    observers = {row["writer"] for row in lab.trace().tables["processes"].to_pylist()}
    assert observers == {f"observer-{os.getpid()}"}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real model that loads at once; the cache is this test's own."""
    monkeypatch.setenv("MQLAB_CACHE", str(tmp_path / "cache"))
    return write_gguf(tmp_path / "tiny.gguf", tiny_weights())


def test_a_detached_server_outlives_its_session_and_is_found_again(shell: InteractiveShell, magic: Magic, tiny: Path) -> None:
    line = f"serve {tiny} --detach --port 0 --max-num-seqs 4"
    printed = magic(line)
    lab = shell.user_ns["lab"]
    pid = lab._hosted.entry.pid
    try:
        assert f"server pid {pid}" in printed and f"%mqlab stop {pid} ends it" in printed and lab.url in printed
        port = lab.url.rpartition(":")[2]
        assert lab.attached and lab.generate_sync("ab12", max_tokens=2, ignore_eos=True).usage.completion_tokens == 2
        assert "already running" in magic(line) and shell.user_ns["lab"] is lab
        assert magic("stop") == "lab detached; its engine runs on\n"
        assert str(pid) in magic("ps")
        again = magic(line)
        assert "reused" in again and f"server pid {pid}" in again and shell.user_ns["lab"].info.pid == lab.info.pid
        with pytest.raises(EngineStartError, match="is taken"):
            magic(f"serve {tiny} --detach -o other --port {port}")
    finally:
        assert "stopped" in magic(f"stop {pid}")
    assert gone(pid) and gone(lab.info.pid) and shell.user_ns["lab"].state()[0] == "dead"


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jupyter_client's own
def test_a_detached_server_outlives_the_kernel(fresh_kernel: Kernel, tiny: Path, magic: Magic, until_gone: Callable[[int], None]) -> None:
    fresh_kernel.run("%load_ext mqlab")
    assert "server pid" in fresh_kernel.run(f"%mqlab serve {tiny} --detach --port 0 -o far")
    own, far = map(int, fresh_kernel.run("print(lab.info.pid, far._hosted.entry.pid)").split())
    fresh_kernel.manager.shutdown_kernel(now=True)
    until_gone(own)
    assert str(far) in magic("ps") and "ready" in magic(f"attach {far}")
    assert "stopped" in magic(f"stop {far}")


@pytest.mark.full
def test_what_was_served_from_a_config_can_be_profiled_by_operator(tiny: Path) -> None:
    with Session.of(EngineConfig(model=str(tiny)), "inproc", timing=Timing(stop_grace=0.5)) as lab:
        done = threading.Event()

        def load() -> None:
            while not done.is_set():
                lab.generate_sync("ab12", max_tokens=20, ignore_eos=True)

        busy = threading.Thread(target=load)
        busy.start()
        try:
            capture = lab.profile_torch(0.2)
        finally:
            done.set()
            busy.join()
    assert any(operator.name.startswith("aten::") for operator in capture.operators)
