"""py-spy around real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest
from waiting import until_sync

from mqlab.errors import ProfileError
from mqlab.probes import pyspy
from mqlab.record.flame import Stacks

SPIN = """
import ctypes, sys, threading
if sys.platform == "linux":  # where Yama lets only ancestors attach, a sibling needs leave
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
def hot_spot():
    while True:
        sum(range(1000))
def entry_point():
    hot_spot()
threading.current_thread().name = "spinner"
print("ready", flush=True)
entry_point()
"""


@pytest.fixture
def busy() -> Iterator[int]:
    """The pid of a process that spins in hot_spot()."""
    process = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    yield process.pid
    process.kill()
    process.communicate()


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a shell script in py-spy's place."""
    path = tmp_path / "py-spy"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(pyspy, "find_binary", lambda: path)


def test_capture_shows_where_the_time_goes(busy: int, tmp_path: Path) -> None:
    capture = pyspy.record({"spinner": busy}, 1, tmp_path / "new" / "folder")
    assert capture.stacks.total > 10
    assert all(stack[0] == "spinner" for stack in capture.stacks.counts)
    assert any("hot_spot" in share.frame and share.total > 0.9 for share in capture.top())
    assert any(frame.startswith("entry_point") for frame in capture.stacks.frames)
    assert Stacks.load(capture.raw).counts == capture.stacks.counts
    assert "hot_spot" in capture.svg.read_text()


def test_capture_is_static_html(busy: int, tmp_path: Path) -> None:
    capture = pyspy.record(busy, 1, tmp_path)
    html = capture._repr_html_()
    root = ElementTree.fromstring(html)
    assert "hot_spot" in "".join(root.itertext()) and str(capture.svg) in "".join(root.itertext())
    assert "<script" not in html and len(html) < 100_000
    assert f"{capture.stacks.total} samples" in repr(capture)


def test_several_processes_are_labelled(busy: int, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        capture = pyspy.record({"one": busy, "other": other.pid}, 1, tmp_path)
        other.kill()
    assert {stack[0] for stack in capture.stacks.counts} == {"one", "other"}


def test_nothing_busy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, 'for last; do :; done; : > "$last"')
    with pytest.raises(ProfileError, match="no thread of waiter was busy"):
        pyspy.record({"waiter": os.getpid()}, 1, tmp_path)


def test_dead_process_is_said(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(ProfileError, match=f"process {process.pid} is not running") as caught:
        pyspy.record(process.pid, 1, tmp_path)
    assert "\n" not in str(caught.value)


def test_not_python_is_said(tmp_path: Path) -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    with pytest.raises(ProfileError, match=f"could not sample process {process.pid}"):
        pyspy.record(process.pid, 1, tmp_path)
    process.communicate()


def test_second_capture_of_a_process_is_refused(busy: int, tmp_path: Path) -> None:
    first = threading.Thread(target=pyspy.record, args=(busy, 1, tmp_path))
    first.start()
    until_sync(lambda: busy in pyspy._sampled)
    with pytest.raises(ProfileError, match=f"process {busy} is being sampled already"):
        pyspy.record({"again": busy}, 1, tmp_path)
    first.join()
    assert pyspy.record(busy, 1, tmp_path).stacks.total


@pytest.mark.parametrize("seconds", [0, -1, 3601, 0.5, 2.5, float("nan"), "5"])
def test_duration_has_limits(seconds: Any, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="whole number of seconds, at least 1 and at most 3600"):
        pyspy.record(os.getpid(), seconds, tmp_path)


@pytest.mark.parametrize(
    "stderr",
    [
        "Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'",
        "Error: Operation not permitted (os error 1)",
        "Error: Failed to open process\nReason: Permission denied (os error 13)",
        "This program requires root on OSX.",
    ],
)
@pytest.mark.parametrize(("platform", "remedy"), [("linux", "ptrace_scope"), ("linux", "cap-add=SYS_PTRACE"), ("darwin", "sudo")])
def test_refused_permission_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, platform: str, remedy: str
) -> None:
    fake(tmp_path, monkeypatch, f"cat >&2 <<'END'\n{stderr}\nEND\nexit 1")
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(ProfileError, match=remedy) as caught:
        pyspy.record(os.getpid(), 1, tmp_path / "out")
    assert "start_profile" in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_refused_permission_of_a_real_sampler(busy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        sampler = shutil.copy(pyspy.find_binary(), open_to_all)
        fake(tmp_path, monkeypatch, f'exec setpriv --reuid 65534 --clear-groups --inh-caps=-all {sampler} "$@"')
        with pytest.raises(ProfileError, match=f"may not attach to process {busy}"):
            pyspy.record(busy, 1, tmp_path / "out")


def test_a_sampler_that_may_not_be_started_is_no_refused_permission(busy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "echo 'sh: 1: py-spy: Permission denied' >&2; exit 126")
    with pytest.raises(ProfileError, match=r"could not sample .* Permission denied"):
        pyspy.record(busy, 1, tmp_path / "out")
    (tmp_path / "py-spy").chmod(0o644)
    with pytest.raises(ProfileError, match=r"cannot be started: .*Permission denied.*pip install"):
        pyspy.record(busy, 1, tmp_path / "out")


def test_unreadable_stacks_are_said(busy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, 'for last; do :; done; echo "no count" > "$last"')
    with pytest.raises(ProfileError, match=f"what py-spy wrote of process {busy} cannot be read: line 1"):
        pyspy.record(busy, 1, tmp_path / "out")


def test_a_process_samples_itself(tmp_path: Path) -> None:
    """Its own sampler is its child, which Yama allows to attach only by leave."""
    taken = threading.Event()

    def hot_spot() -> None:
        while not taken.is_set():
            sum(range(1000))

    spinner = threading.Thread(target=hot_spot)
    spinner.start()
    try:
        assert any("hot_spot" in frame for frame in pyspy.record(os.getpid(), 1, tmp_path).stacks.frames)
    finally:
        taken.set()
        spinner.join()


def test_missing_sampler_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProfileError, match="pip install py-spy"):
        pyspy.record(os.getpid(), 1, tmp_path)


def test_stuck_sampler_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy, "_SLACK_S", 0.1)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    fake(tmp_path, monkeypatch, f"exec cat {fifo}")
    with pytest.raises(ProfileError, match="was killed"):
        pyspy.record(os.getpid(), 1, tmp_path)
    assert psutil.Process().children() == []
