"""Recordings: what is read from outside, whatever becomes of those who write."""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mqlab.contract.waiting import until
from mqlab.probes.recording import KEPT, Recording, begin_recording, new_recording
from mqlab.probes.sink import Lines, Sink
from mqlab.record.events import read_events
from mqlab.record.requests import EngineRow
from mqlab.topologies import make_client
from mqlab.types import Request, SamplingParams
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

ECHO = Wiring(Spec("mqlab.engine.echo:build"), log_stats_interval=0)


def test_who_writes_and_what(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    assert recording.processes() == recording.read() == {}
    front, engine = Sink(tmp_path, "front"), Sink(tmp_path, "engine")
    front.block("a").write(1)
    pid = os.getpid()
    assert recording.processes() == {f"front-{pid}": pid, f"engine-{pid}": pid}
    assert recording.read() == {f"front-{pid}": {"a": 1}, f"engine-{pid}": {}}
    engine.block("b").write(2)
    front.close()
    engine.close()
    shutil.rmtree(tmp_path)
    assert recording.read() == {f"front-{pid}": {"a": 1}, f"engine-{pid}": {"b": 2}}, "what was written last is still there"
    recording.close()
    recording.close()


def test_a_second_client_of_the_process_takes_the_first_s_place(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    first = Sink.of(tmp_path, "front")
    assert Sink.of(tmp_path, "front") is first
    first.block("a").write(1)
    assert list(recording.read().values()) == [{"a": 1}]
    first.close()
    second = Sink.of(tmp_path, "front")
    second.block("b").write(2)
    assert list(recording.read().values()) == [{"b": 2}]
    second.close()
    recording.close()


def test_new_recordings_are_in_order_and_few(tmp_path: Path) -> None:
    root = tmp_path / "recordings"
    (root / "mine").mkdir(parents=True)
    folders = [new_recording(root, f"run {i}/x") for i in range(KEPT + 3)]
    assert sorted(folders) == folders
    assert folders[-1].name.endswith("-run-22-x")
    assert sorted(path for path in root.iterdir() if path.name != "mine") == folders[-KEPT:]
    assert (root / "mine").is_dir(), "what is no recording stays"


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MQLAB_CACHE", str(tmp_path / "file" / "cache"))
    assert begin_recording("lab") is None
    assert "the probe recording is dropped" in caplog.text
    monkeypatch.setenv("MQLAB_CACHE", str(tmp_path / "cache"))
    folder = begin_recording("lab")
    assert folder is not None and folder.parent == tmp_path / "cache" / "recordings"


def test_half_a_line_is_an_error(tmp_path: Path) -> None:
    """A disk that fills up takes what it has room for: what comes later must not go on behind that."""
    lines, (soft, hard) = Lines(tmp_path / "file"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            lines.write([EngineRow("a", 1, 2), EngineRow("b", 3, 4)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    lines.close()
    assert (tmp_path / "file").stat().st_size == 40


@pytest.mark.parametrize("topology", ["mq", "v1"])
async def test_a_killed_engine_leaves_all_that_it_wrote(tmp_path: Path, topology: str) -> None:
    client = make_client(topology, ECHO.recorded(tmp_path))
    await client.start()
    stream = client.generate(Request("a", [3, 4], SamplingParams(max_tokens=50, ignore_eos=True)))
    assert sum([len(delta.tokens) async for delta in stream]) == 50
    recording = Recording(tmp_path)
    # What the front has received, the engine has sent, but perhaps not counted yet; then its step rows may still be in memory, too.
    await until(lambda: _balanced(recording) and _step_tokens(tmp_path) == 50)
    psutil.Process(client.info.pid).send_signal(signal.SIGKILL)
    with pytest.raises(Exception, match="SIGKILL"):
        await asyncio.wait_for(client.call("ping"), 5)
    await client.close()
    assert _step_tokens(tmp_path) == 50
    (requests,) = tmp_path.glob("engine-*.requests.jsonl")
    assert requests.read_text().count("\n") == 1
    assert _balanced(recording), "nothing was lost"
    recording.close()


def _balanced(recording: Recording) -> bool:
    """Whether the engine has sent what the front has received."""
    pages = {writer.partition("-")[0]: page for writer, page in recording.read().items()}
    return pages["engine"]["socket.output.sent.messages"] == pages["front"]["socket.output.received.messages"]


def _steps(recording: Recording) -> int:
    """The engine's steps, as its page has them."""
    return sum(page.get("step.count", 0) for page in recording.read().values())


def _step_tokens(folder: Path) -> int:
    """New tokens of the engine's steps, as its file has them."""
    (path,) = folder.glob("engine-*.step.events")
    return int(read_events(path).rows[:, 8].sum())


async def test_a_recording_is_read_while_it_grows(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    async with make_client("v1", ECHO.recorded(tmp_path)) as client:
        for i in range(1, 4):
            async for _ in client.generate(Request("a", [3, 4], SamplingParams(max_tokens=10, ignore_eos=True))):
                pass
            tokens = 10 * i
            await until(
                lambda tokens=tokens: [page["step.count"] for page in recording.read().values() if "step.count" in page] == [tokens]
            )
            (path,) = tmp_path.glob("engine-*.step.events")
            assert len(read_events(path).rows) == tokens
        await until(lambda: sum(page.get("request.finished", 0) for page in recording.read().values()) == 3)
    recording.close()


def test_a_recorded_wiring_crosses_into_a_child(tmp_path: Path) -> None:
    wiring = ECHO.recorded(tmp_path)
    assert pickle.loads(pickle.dumps(wiring)) == wiring


def test_without_recording_no_probe_is_imported(tmp_path: Path) -> None:
    code = """
import asyncio, sys
from mqlab.topologies import make_client
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

LOADED = Spec("__call__:x")

async def main():
    wiring = Wiring(Spec("mqlab.engine.echo:build"))
    core = wiring.build_core()
    print(type(core).__module__, [name for name in sys.modules if name.startswith(("mqlab.probes", "mqlab.record"))])
    client = make_client("inproc", wiring)
    print(type(client.streams).__name__, client.companions, wiring.wrap_client(client) is client)
    await client.close()

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code.replace('LOADED = Spec("__call__:x")\n', "")], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["mqlab.engine.echo []", "Streams [] True"], done.stderr
