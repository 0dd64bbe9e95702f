"""The processes that share an engine's model, found from outside; and what is said of the end of one."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from mqlab.contract.waiting import until_sync
from mqlab.probes.proc import ProcessSampler
from mqlab.probes.recording import Recording
from mqlab.wire.process import Child, launch
from mqlab.wire.ranks import with_ranks
from mqlab.wire.spec import Spec


@contextmanager
def rank(number: int, folder: Path) -> Iterator[Child]:
    """A child of this process that looks like one."""
    here, there = socket.socketpair()
    with here, there:
        entry = Spec("failing_rank:deaf_rank", {"rank": number, "size": 3, "fd": there.fileno()})
        child = launch(entry, folder, f"rank-{number}", inherit=(there.fileno(),))
    try:
        yield child
    finally:
        child.reap()


def found(**pids: int) -> dict[str, int]:
    return with_ranks({"engine": os.getpid(), **pids})


def test_ranks_are_found_below_the_engine_and_nowhere_else(tmp_path: Path) -> None:
    none = {"engine": os.getpid()}
    assert found() == none and found(front=1) == {**none, "front": 1}
    with rank(1, tmp_path) as first, rank(2, tmp_path) as second:
        both = {**none, "rank-1": first.pid, "rank-2": second.pid}
        assert found() == both
        assert with_ranks({"engine": first.pid}) == {"engine": first.pid}
        with rank(1, tmp_path) as other:
            names = found()
            assert set(names.values()) == {*both.values(), other.pid} and len(names) == 4
    assert found(**{"rank-1": first.pid}) == none, "what was known of them before may be gone"
    assert with_ranks({"front": 7}) == {"front": 7}


def test_ranks_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    with rank(10, tmp_path), rank(2, tmp_path):
        assert list(found()) == ["engine", "rank-2", "rank-10"]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="Linux")
def test_an_engine_that_is_gone_has_none() -> None:
    assert with_ranks({"engine": 2**30}) == {"engine": 2**30}


def test_an_observer_sees_ranks_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlab.probes.proc._RANKS_EVERY", 1)
    recording = tmp_path / "recording"
    sampler = ProcessSampler(recording, {"engine": os.getpid(), "rank-1": os.getpid()})

    def seen() -> tuple[int, bool]:
        sampler.look()
        (page,) = pages.read().values()
        return page.get("process.rank-1.pid", 0), page.get("process.rank-1.rss_bytes", 0) > 0

    with ExitStack() as stack:
        stack.callback(sampler.close)
        pages = stack.enter_context(_closing(Recording(recording)))
        for _ in range(2):
            assert seen()[0] == 0
            with rank(1, tmp_path) as child:
                assert seen() == (child.pid, True)


def test_a_process_that_takes_over_a_name_has_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two models in one process the first is unloaded, and the second one's rank is the first now."""
    monkeypatch.setattr("mqlab.probes.proc._RANKS_EVERY", 1)
    seen = {"rank-1": os.getppid(), "rank-1 7": os.getpid()}
    monkeypatch.setattr("mqlab.probes.proc.with_ranks", lambda pids: {**pids, **seen})
    sampler = ProcessSampler(tmp_path / "recording", {"engine": os.getpid()})
    with ExitStack() as stack:
        stack.callback(sampler.close)
        pages = stack.enter_context(_closing(Recording(tmp_path / "recording")))
        sampler.look()
        seen = {"rank-1": os.getpid()}
        sampler.look()
        (page,) = pages.read().values()
    assert (page["process.rank-1.pid"], page["process.rank-1 7.pid"]) == (os.getpid(), 0)


@contextmanager
def _closing(recording: Recording) -> Iterator[Recording]:
    try:
        yield recording
    finally:
        recording.close()


def test_a_rank_that_is_killed_is_told_with_what_may_help(tmp_path: Path) -> None:
    with rank(1, tmp_path) as child:
        psutil.Process(child.pid).send_signal(signal.SIGKILL)
        until_sync(lambda: child.exit_code() is not None)
        said = child.describe_exit()
        assert said.startswith(f"rank-1 process {child.pid} was killed by SIGKILL") and "lower --kv-cache-gb" in said
