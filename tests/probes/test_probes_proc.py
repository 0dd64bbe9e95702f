"""Processes seen from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mqlab.probes.proc import ProcessSampler
from mqlab.probes.recording import Recording
from mqlab.record.events import read_events


def counters(folder: Path) -> dict[str, int]:
    recording = Recording(folder)
    ((writer, page),) = recording.read().items()
    recording.close()
    assert writer == f"observer-{os.getpid()}"
    return page


def test_figures_of_a_live_process(tmp_path: Path) -> None:
    sampler = ProcessSampler(tmp_path, {"front": os.getpid()})
    sampler.look()
    sum(range(10**6))
    sampler.look()
    page = counters(tmp_path)
    sampler.close()
    sampler.look()
    (path,) = tmp_path.glob("observer-*.process.front.events")
    rows = read_events(path).rows
    assert rows[:, 1].tolist() == [os.getpid()] * 2
    assert rows[1, 0] > rows[0, 0] and (rows[1, [2, 5, 6]] >= rows[0, [2, 5, 6]]).all(), "sums only grow"
    names = ("cpu_ns", "rss_bytes", "fds", "voluntary", "involuntary", "threads")
    assert [page[f"process.front.{name}"] for name in names] == rows[1, 2:].tolist()
    assert page["process.front.rss_bytes"] > 10**6 and page["process.front.fds"] > 2 and page["process.front.threads"] >= 1
    assert page["probe.process.events"] == 2 and page["probe.process.ns"] > 0


def test_a_dead_process_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    sampler = ProcessSampler(tmp_path, {"engine": child.pid, "front": os.getpid()})
    sampler.look()
    before = counters(tmp_path)
    child.communicate(b"\n")
    for _ in range(2):
        sampler.look()
    after = counters(tmp_path)
    sampler.close()
    assert after["process.engine.rss_bytes"] == before["process.engine.rss_bytes"] > 0
    assert after["probe.process.events"] == 3
    (path,) = tmp_path.glob("observer-*.process.engine.events")
    assert len(read_events(path).rows) == 1
    assert not caplog.records, "an end is no failure"


def test_a_zombie_is_dead(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    sampler = ProcessSampler(tmp_path, {"engine": child.pid})
    sampler.look()
    sampler.look()
    sampler.close()
    child.wait()
    assert not caplog.records
