"""The commands that look at what runs: ps, stop, profile, metrics, trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving import Process, echo_command, echo_server, running

from mqlab import cli
from mqlab.contract.processes import gone
from mqlab.lab.session import Session
from mqlab.record.capture import Capture
from mqlab.record.trace import Trace
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

Told = Callable[..., str]


@pytest.fixture(scope="module")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """An echo engine behind HTTP that stays up."""
    with echo_server(model_folder, tmp_path_factory.mktemp("server"), topology="mq") as process:
        yield process


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command that succeeds; what it printed."""

    def told(*argv: str) -> str:
        capsys.readouterr()
        assert cli.main(argv) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return told


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command that fails; its message."""

    def refused(*argv: str, status: int = 1) -> str:
        capsys.readouterr()
        assert cli.main(argv) == status
        shown = capsys.readouterr()
        assert shown.out == "" and shown.err.startswith("mqlab: ") and "Traceback" not in shown.err
        return shown.err

    return refused


def test_where_nothing_runs_each_says_so(told: Told, refused: Told) -> None:
    assert "no engine of this user is running" in told("ps")
    assert "no engine" in told("stop", "--all")
    for command in ("stop", "profile", "metrics", "trace"):
        assert "mqlab serve MODEL" in refused(command)
        assert "no engine '1' is running" in refused(command, "1")
    assert "not both" in refused("stop", "1", "--all", status=2)
    assert "--seconds=0" in refused("profile", "--seconds", "0", status=2)


def test_ps_lists_what_runs(server: Process, told: Told) -> None:
    head, row = told("ps").splitlines()
    assert head.split()[:2] == ["PID", "UP"]
    pid, _, model, topology, url, *owner = row.split()
    assert (int(pid), model, topology, url, owner) == (server.popen.pid, "echo", "mq", server.url, ["itself"])


def test_metrics_are_those_of_its_server(server: Process, told: Told) -> None:
    for target in ([], [str(server.popen.pid)], [server.url]):
        assert "mqlab:num_requests_running" in told("metrics", *target)


def test_a_capture_says_who_did_what_and_where_it_lies(server: Process, told: Told, tmp_path: Path) -> None:
    shown = told("profile", str(server.popen.pid), "--seconds", "1", "--folder", str(tmp_path / "capture"), "--idle")
    capture = Capture.load(tmp_path / "capture")
    assert {part.role: part.pid for part in capture.parts} == {"front": server.popen.pid, "engine": server.engine_pid}
    assert str(capture.categories()) in shown
    assert str(capture.speedscope) in shown and str(capture.svg) in shown and capture.svg.is_file()


def test_traces_are_told_saved_and_exported(server: Process, told: Told, refused: Told, tmp_path: Path) -> None:
    shown = told("trace", "--save", str(tmp_path / "run"), "--export", str(tmp_path / "run.json"))
    assert shown.startswith("Trace") and "ui.perfetto.dev" in shown
    saved = tmp_path / "run.mqtrace"
    assert f"saved as {saved}" in shown and f"front-{server.popen.pid}" in shown
    assert json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert told("trace", str(saved)).strip() == repr(Trace.load(saved))
    assert "exists" in refused("trace", str(saved), "--save", str(saved))
    assert "holds no recording" in refused("trace", str(tmp_path))


def test_stop_ends_what_it_names_and_nothing_else(server: Process, model_folder: Path, tmp_path: Path, told: Told, refused: Told) -> None:
    with running(echo_command(model_folder, topology="inproc"), tmp_path) as other:
        pid = str(other.wait_ready().popen.pid)
        assert "which one?" in refused("stop") and pid in refused("stop")
        assert told("stop", pid) == f"engine echo (pid {pid}) stopped\n"
        assert other.popen.wait(10) == 0
    assert str(server.popen.pid) in told("ps") and pid not in told("ps")


@pytest.fixture
def session(model_folder: Path) -> Iterator[Session]:
    """A notebook's, as far as others can tell; without a recording."""
    with Session(Wiring(Spec("mqlab.engine.echo:build", {"path": str(model_folder)})), record=False) as session:
        yield session


def test_a_notebooks_session_is_seen_and_has_no_server_unless_asked(session: Session, told: Told, refused: Told) -> None:
    pid = str(session.info.pid)
    assert pid in told("ps")
    assert "no HTTP server" in refused("metrics", pid)
    assert "mqlab:num_requests_running" in told("metrics", session.url)
    assert "records nothing" in refused("trace", pid)
    assert "stopped" in told("stop", pid)
    assert gone(session.info.pid)
