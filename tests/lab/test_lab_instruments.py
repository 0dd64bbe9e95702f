"""What one can see and measure of a session: server, load, comparison, captures, metrics, traces, dashboard."""

from __future__ import annotations

import inspect
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest

from mqlab.bench.comparison import Comparison
from mqlab.config import EngineConfig
from mqlab.contract.waiting import until_sync
from mqlab.errors import ClientClosedError, ConfigError, EngineDeadError, ProfileError, TraceError
from mqlab.lab.session import Session
from mqlab.probes.options import ProfileConfig
from mqlab.record.capture import Capture
from mqlab.record.trace import Trace
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

TOPOLOGIES = ("inproc", "aio", "mq", "v1")
HELLO = "Hello there world"

Start = Callable[..., Session]


@pytest.fixture(scope="module", params=TOPOLOGIES)
def lab(request: pytest.FixtureRequest, model_folder: Path) -> Iterator[Session]:
    """A session over each layout that has answered three requests of three tokens, and goes on."""
    with Session(Wiring(Spec("mqlab.engine.echo:build", {"path": str(model_folder)})), request.param) as session:
        for _ in range(3):
            session.generate_sync(HELLO, max_tokens=3)
        yield session


def test_it_has_a_server_in_the_process_of_its_front(lab: Session) -> None:
    url = lab.url
    assert url == lab.url and url in lab.where() and url in lab.addresses
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": HELLO, "max_tokens": 3}, timeout=10).json()
    assert answer["choices"][0]["text"] == HELLO
    assert (lab.pids["front"] == os.getpid()) == (lab.topology in ("mq", "v1"))
    assert (lab.pids["front"] == lab.pids["engine"]) == (lab.topology in ("inproc", "aio"))


def test_it_can_be_loaded(lab: Session) -> None:
    result = lab.bench(num_prompts=6, request_rate=300.0, input_len=4, output_len=4, disable_tqdm=True)
    assert len(result.good) == 6 and result.failed == 0 and "6 of 6 requests" in repr(result)
    assert result.model == "echo" and set(result.cpu.share) >= set(lab.pids)


def test_its_metrics_are_readable(lab: Session) -> None:
    metrics = lab.metrics()
    frame = metrics.to_pandas()
    assert list(frame.columns) == ["figure", "value"]
    text = " ".join("".join(ElementTree.fromstring(metrics._repr_html_()).itertext()).split())
    for figure, value in frame.itertuples(index=False):
        assert figure in repr(metrics) and value in repr(metrics) and value in text
    assert {"new tokens", "requests", "KV cache", "event loop lag", "engine step", "probes"} <= set(frame["figure"])
    assert any(figure.startswith("CPU of") for figure in frame["figure"])


def finished(trace: Trace) -> list[tuple[int, str]]:
    """Tokens and end of each request whose end is written down, which takes the probes a moment."""
    return [(row["output_tokens"], row["finish"]) for row in trace.tables["requests"].to_pylist() if row["finish"]]


def test_its_recording_says_what_it_was(lab: Session) -> None:
    until_sync(lambda: len(finished(lab.trace())) >= 3, interval=0.1)
    trace = lab.trace()
    ((run, meta),) = trace.meta["runs"].items()
    assert run.endswith("-lab")
    assert (meta["topology"], meta["preset"], meta["codec"], meta["model"]) == (lab.topology, "best", "msgpack", "echo")
    assert lab._hosted.recording is not None
    assert json.loads((lab._hosted.recording / "meta.json").read_text())["topology"] == lab.topology
    assert finished(trace)[:3] == [(3, "length")] * 3


def test_its_dashboard_is_one_until_closed(lab: Session) -> None:
    first = lab.dashboard()
    assert lab.dashboard() is first and not first.closed
    assert f"echo · {lab.topology}" in repr(first)
    first.close()
    assert first.closed and lab.dashboard() is not first


def test_settings_that_do_not_exist_are_named(lab: Session) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'rate'; there are .*request_rate"):
        lab.bench(rate=1)
    with pytest.raises(ConfigError, match="--num-prompts=0"):
        lab.bench(num_prompts=0)
    with pytest.raises(ConfigError, match="not made from an EngineConfig"):
        lab.compare(topologies="inproc,mq")


@pytest.mark.full
def test_operators_of_an_engine_without_torch_are_none(start: Start, tmp_path: Path) -> None:
    lab = start()
    with pytest.raises(ProfileError, match="saw no operator of engine 'echo'"):
        lab.profile_torch(0.01, folder=tmp_path)
    assert lab.generate_sync(HELLO, max_tokens=3).text == HELLO


def test_a_comparison_takes_the_settings_of_the_session(start: Start) -> None:
    lab = start("inproc")
    lab._config = EngineConfig(model="echo", max_num_seqs=8)
    with pytest.raises(ConfigError, match="unknown setting 'topologys'"):
        lab.compare(topologys="inproc,mq")
    result = lab.compare(vary="max_num_seqs=2,4", topology="inproc", num_prompts=4, input_len=4, output_len=4, rounds=3, control=False)
    assert isinstance(result, Comparison) and len(result.rows()) == 2 and not result.void
    assert not lab.stopped


@pytest.mark.parametrize("topology", ["inproc", "mq"])
def test_what_was_recorded_outlives_the_session(start: Start, topology: str) -> None:
    lab = start(topology)
    lab.generate_sync(HELLO, max_tokens=3)
    dashboard = lab.dashboard()
    until_sync(lambda: "1 finished" in repr(lab.metrics()))
    lab.stop()
    assert dashboard.closed
    assert len(lab.trace().to_pandas("requests")) == 1 and "1 finished" in repr(lab.metrics())
    for use in (lambda: lab.url, lambda: lab.bench(num_prompts=1), lambda: lab.profile(1), lambda: lab.profile_torch(0.1)):
        with pytest.raises(ClientClosedError, match="lab is stopped"):
            use()


def test_a_session_without_probes_says_so(start: Start) -> None:
    lab = start("mq", record=False)
    lab.generate_sync(HELLO, max_tokens=3)
    with pytest.raises(ConfigError, match="--no-record"):
        lab.trace()
    assert "no probes" in repr(lab.metrics()) and "echo · mq" in repr(lab.dashboard())
    assert lab.bench(num_prompts=2, input_len=4, output_len=4, disable_tqdm=True).failed == 0


def test_a_recording_that_was_deleted_is_named(start: Start) -> None:
    lab = start("inproc")
    lab.stop()
    recording = lab._hosted.recording
    assert recording is not None
    for path in recording.iterdir():
        path.unlink()
    with pytest.raises(TraceError, match=str(recording)):
        lab.trace()


def test_a_dead_engine_is_not_profiled(start: Start) -> None:
    lab = start("inproc")
    os.kill(lab.info.pid, signal.SIGKILL)
    until_sync(lambda: not lab.health().ok)
    with pytest.raises(EngineDeadError):
        lab.profile(1)
    with pytest.raises(EngineDeadError):
        lab.profile_torch(0.1)
    assert "dead" in repr(lab)


def test_a_capture_takes_every_setting_of_the_command(start: Start, tmp_path: Path) -> None:
    assert {one.name for one in fields(ProfileConfig)} <= set(inspect.signature(Session.profile).parameters)
    capture = start("aio").profile(1, rate=50, idle=True, folder=tmp_path / "capture")
    assert capture.how.rate == 50 and capture.how.idle and [part.role for part in capture.parts] == ["front+engine"]
    assert repr(Capture.load(tmp_path / "capture")) == repr(capture)
