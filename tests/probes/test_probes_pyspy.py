"""py-spy around real processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from mqlab.contract.waiting import until_sync
from mqlab.errors import ProfileError
from mqlab.probes import pyspy, sampler
from mqlab.record.capture import Capture

SPIN = """
import ctypes, sys, threading
if sys.platform == "linux":  # where Yama lets only ancestors attach, a sibling needs leave
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
def hot_spot():
    while True:
        sum(range(1000))
def entry_point():
    hot_spot()
threading.current_thread().name = "spinner thread"
print("ready", flush=True)
entry_point()
"""


# A Python process and a program that is none, below a Python process; they end with their parent's input.
PARENT = """
import subprocess, sys
cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
child = subprocess.Popen([sys.executable, "-c", {spin!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print("ready", flush=True)
sys.stdin.read()
child.communicate()
cat.communicate()
"""


@contextmanager
def running(code: str) -> Iterator[int]:
    """The pid of a Python process that has printed a line."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def spinning() -> AbstractContextManager[int]:
    """A process that spins in hot_spot()."""
    return running(SPIN)


@pytest.fixture
def busy() -> Iterator[int]:
    """The pid of a process that spins in hot_spot()."""
    with spinning() as pid:
        yield pid


def sampling(pid: int) -> bool:
    """Whether a sampler of this test is looking at a process, and has begun."""
    samplers = [child for child in psutil.Process().children() if child.name() == "py-spy" and str(pid) in child.cmdline()]
    outputs = [Path(child.cmdline()[-1]).with_name("stdout") for child in samplers]
    return any(output.is_file() and "Sampling process" in output.read_text() for output in outputs)


def until_sampled(pid: int) -> None:
    """Return when a process was looked at while it used 0.2 s of CPU."""
    until_sync(lambda: sampling(pid))
    begun = psutil.Process(pid).cpu_times().user
    until_sync(lambda: psutil.Process(pid).cpu_times().user > begun + 0.2)


def frames_of(capture: Capture, pid: int) -> list[str]:
    """The frames of a sampled process."""
    return [frame for part in capture.parts if part.pid == pid for frame in part.stacks.frames]


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a shell script in py-spy's place."""
    path = tmp_path / "py-spy"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(pyspy, "find_binary", lambda: path)


def test_capture_shows_where_the_time_goes_and_outlives_the_process(tmp_path: Path) -> None:
    with spinning() as busy:
        capture = pyspy.record({"spinner": busy}, 1, tmp_path / "new" / "folder")
    assert Capture.load(tmp_path / "new" / "folder") == capture
    assert capture.stacks.total > 10
    assert all(stack[:2] == ("spinner", "spinner thread") for stack in capture.stacks.counts)
    assert any("hot_spot" in share.frame and share.total > 0.9 for share in capture.top())
    assert any(frame.startswith("entry_point") for frame in capture.stacks.frames)
    part = capture.part("spinner")
    assert (part.pid, part.python) == (busy, f"{sys.version_info.major}.{sys.version_info.minor}")
    assert part.cpu_s["spinner thread"] > 0 and part.errors == 0 and part.notes == ()
    assert "hot_spot" in capture.svg.read_text()


def test_several_processes_are_labelled(busy: int, tmp_path: Path) -> None:
    with spinning() as other:
        capture = pyspy.record({"one": busy, "other": other}, 1, tmp_path)
    assert {stack[0] for stack in capture.stacks.counts} == {"one", "other"}
    assert capture.categories().share("one", "other") > 0


def test_a_process_with_two_roles_is_sampled_once(busy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, 'for last; do :; done; echo "MainThread;a 1" > "$last"')
    capture = pyspy.record({"engine": busy, "front": busy}, 1, tmp_path / "out")
    assert [part.role for part in capture.parts] == ["engine+front"]


def test_processes_below_the_targets_are_found_and_what_is_no_python_is_said(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT.format(spin=SPIN)], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
        below = psutil.Process(parent.pid).children()
        capture = pyspy.record({"front": parent.pid}, 1, tmp_path, children=True)
        for child in below:
            child.kill()
        parent.communicate()
    python = next(child.pid for child in below if "hot_spot" in " ".join(frames_of(capture, child.pid)))
    assert [part.role for part in capture.parts] == ["front", f"front child {python}"]
    assert any("(cat), below front, is not Python" in note for note in capture.problems)


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("loop", [pytest.param("asyncio", marks=pytest.mark.full), "uvloop"])
def test_an_event_loop_that_waits_is_idle(loop: str, idle: bool, tmp_path: Path) -> None:
    code = f"import asyncio, {loop}; print(flush=True); {loop}.run(asyncio.Event().wait())"
    with running(code) as pid:
        capture = pyspy.record({"front": pid}, 1, tmp_path, idle=idle)
    shares = capture.categories()
    assert shares.share("front", "idle") + shares.share("front", "no core") > 0.9
    assert idle == any(stack[1] == "MainThread" and count > 50 for stack, count in capture.stacks.counts.items())


def test_a_process_in_which_nothing_runs_is_all_idle_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, 'for last; do :; done; : > "$last"')
    capture = pyspy.record({"waiter": os.getpid()}, 1, tmp_path / "out")
    assert capture.stacks.total == 0 and capture.categories().share("waiter", "idle") == 1.0
    assert capture.problems == ("waiter: no thread ran when it was looked at, in 1.0 s",)
    assert "no thread ran" in capture._repr_html_()


def test_what_could_be_sampled_is_kept(busy: int, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    capture = pyspy.record({"front": busy, "engine": dead.pid}, 1, tmp_path)
    assert [part.role for part in capture.parts] == ["front"]
    assert capture.problems == (f"process {dead.pid} is not running: nothing can be sampled; start it first",)
    assert Capture.load(tmp_path).problems == capture.problems and "is not running" in capture._repr_html_()


def test_a_process_that_ends_leaves_what_was_seen(tmp_path: Path) -> None:
    with spinning() as pid:
        ender = threading.Thread(target=lambda: (until_sampled(pid), os.kill(pid, signal.SIGKILL)))
        ender.start()
        capture = pyspy.record({"engine": pid}, 30, tmp_path)
        ender.join()
    assert 0 < capture.part("engine").seconds < 20
    assert re.fullmatch(rf"engine: partial, [\d.]+ of 30 s: process {pid} ended", capture.problems[0])


def test_stopping_early_keeps_what_was_seen(busy: int, tmp_path: Path) -> None:
    stop = threading.Event()
    stopper = threading.Thread(target=lambda: (until_sampled(busy), stop.set()))
    stopper.start()
    capture = pyspy.record({"engine": busy}, 30, tmp_path, stop=stop)
    stopper.join()
    assert capture.stacks.total and 0 < capture.part("engine").seconds < 20
    assert re.fullmatch(r"engine: partial, [\d.]+ of 30 s: stopped early", capture.problems[0])
    assert psutil.Process().children(recursive=True) == [psutil.Process(busy)]


def test_an_interrupt_keeps_what_was_seen(busy: int, tmp_path: Path) -> None:
    interrupter = threading.Thread(target=lambda: (until_sampled(busy), os.kill(os.getpid(), signal.SIGINT)))
    interrupter.start()
    capture = pyspy.record({"engine": busy}, 30, tmp_path)
    interrupter.join()
    assert capture.stacks.total and "stopped early" in capture.problems[0]


def test_an_interrupt_before_anything_was_seen_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, f"kill -INT {os.getpid()}; exec sleep 60")
    with pytest.raises(KeyboardInterrupt):
        pyspy.record(os.getpid(), 30, tmp_path / "out")
    assert psutil.Process().children() == [] and not (tmp_path / "out").exists()


def test_a_capture_that_is_stopped_before_it_began_says_so(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(ProfileError, match="stopped before it began"):
        pyspy.record(os.getpid(), 1, tmp_path, stop=stop)


def test_a_sampler_that_falls_behind_is_stopped_in_time_and_says_so(busy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "LATE_S", 0.0)
    behind = "py-spy> 1.25s behind in sampling, results may be inaccurate. Try reducing the sampling rate"
    script = f"""for last; do :; done
trap 'echo "MainThread;a 3" > "$last"; echo "Samples: 3 Errors: 2"; exit 0' INT
echo 'py-spy> Sampling process 1000 times a second'; echo '{behind}'
while :; do sleep 0.05; done"""
    fake(tmp_path, monkeypatch, script)
    capture = pyspy.record({"engine": busy}, 1, tmp_path / "out", rate=1000)
    assert capture.problems == (
        "engine: py-spy fell up to 1.2 s behind 1000 samples a second: lower the rate",
        "engine: 2 samples failed and are left out",
    )
    assert "2 samples failed" in repr(capture) and capture.part("engine").errors == 2


@pytest.mark.parametrize("option", ["native", "gil", "idle"])
def test_options_reach_the_sampler(option: str, busy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, 'for last; do :; done; echo "MainThread;$(echo "$@" | tr -d " ;") 1" > "$last"')
    chosen: dict[str, Any] = {option: True}
    capture = pyspy.record(busy, 1, tmp_path / "out", rate=10, **chosen)
    (command,) = (frame for frame in capture.stacks.frames if "--rate10" in frame)
    assert {name for name in ("native", "gil", "idle") if f"--{name}" in command} == {option}


@pytest.mark.full
@pytest.mark.parametrize("rate", [10, 1000])
def test_rates_give_their_samples_and_take_the_time_asked_for(rate: int, busy: int, tmp_path: Path) -> None:
    capture = pyspy.record({"x": busy}, 3, tmp_path, rate=rate, native=rate == 10)
    assert 0.5 * 3 * rate <= capture.stacks.total <= 3 * rate
    assert capture.part("x").seconds <= 3 + sampler.LATE_S


def test_dead_process_is_said(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(ProfileError, match=f"process {process.pid} is not running") as caught:
        pyspy.record(process.pid, 1, tmp_path)
    assert "\n" not in str(caught.value)


def test_not_python_is_said(tmp_path: Path) -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    with pytest.raises(ProfileError, match=f"process {process.pid}.*Failed to find python version"):
        pyspy.record(process.pid, 1, tmp_path)
    process.communicate()


def test_unknown_interpreter_is_said(busy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "echo 'Error: Unsupported version of Python: 3.99.0' >&2; exit 1")
    with pytest.raises(ProfileError, match=r"does not know the Python .*3\.99\.0.*pip install --upgrade py-spy.*start_profile"):
        pyspy.record(busy, 1, tmp_path / "out")


def test_second_capture_of_a_process_is_refused(busy: int, tmp_path: Path, runtime_dir: Path) -> None:
    stop = threading.Event()
    first = threading.Thread(target=pyspy.record, args=(busy, 30, tmp_path), kwargs={"stop": stop})
    first.start()
    until_sync(lambda: sampling(busy))
    with pytest.raises(ProfileError, match=f"process {busy} is being sampled already"):
        pyspy.record({"again": busy}, 1, tmp_path)
    code = f"from mqlab.probes.pyspy import record; from pathlib import Path; record({busy}, 1, Path('.'))"
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert f"process {busy} is being sampled already" in elsewhere.stderr
    stop.set()
    first.join()
    assert pyspy.record(busy, 1, tmp_path).stacks.total
    assert not list(runtime_dir.glob("mqlab-sampled-*"))


@pytest.mark.parametrize("rate", [0, 1001, 0.5])
def test_rate_has_limits(rate: Any, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"rate=.*at least 1 and at most 1000"):
        pyspy.record(os.getpid(), 1, tmp_path, rate=rate)


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


@pytest.mark.parametrize(("limit", "says"), [("START_S", "it did not begin within"), ("STOP_S", "it did not write its stacks within")])
def test_stuck_sampler_is_killed(limit: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, limit, 0.1)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    monkeypatch.setattr(sampler, "LATE_S", -1.0)
    begun = "echo Sampling process" if limit == "STOP_S" else ":"
    fake(tmp_path, monkeypatch, f"trap : INT; {begun}; while :; do cat {fifo}; done")
    with pytest.raises(ProfileError, match=f"{says} 0.1 s; it was killed"):
        pyspy.record(os.getpid(), 1, tmp_path / "out")
    assert [child for child in psutil.Process().children() if child.name() == "py-spy"] == []
