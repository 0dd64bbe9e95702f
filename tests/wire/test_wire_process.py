"""Children: launched as commands of their own, watched, ended in bounded time."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from mqlab.contract.processes import ended
from mqlab.contract.waiting import until, until_sync
from mqlab.wire.liveness import ExitWatch
from mqlab.wire.process import Child, launch
from mqlab.wire.report import Report
from mqlab.wire.spec import Spec

# Entries are called with (reporter, run_dir): importable callables that take two positional arguments will do.
ECHOES = Spec("builtins:print")
FAILS = Spec("builtins:divmod")
ENDLESS = Spec("entry_that_waits:wait")
ENDLESS_SOURCE = """
import threading
def wait(reporter, run_dir):
    reporter.ready()
    threading.Event().wait()
"""


@contextmanager
def child_of(entry: Spec, folder: Path) -> Iterator[Child]:
    child = launch(entry, folder)
    try:
        yield child
    finally:
        child.reap()
        child.reap()


def exited(child: Child) -> int:
    until_sync(lambda: child.exit_code() is not None, timeout=20)
    code = child.exit_code()
    assert code is not None
    return code


def test_what_it_prints_is_in_its_log(tmp_path: Path) -> None:
    with child_of(ECHOES, tmp_path) as child:
        assert exited(child) == 0
        assert str(tmp_path) in child.log_tail()
        assert child.describe_exit() == f"engine process {child.pid} exited with code 0"
        assert child.reports.read() == []


def test_a_failure_is_reported_with_its_traceback(tmp_path: Path) -> None:
    with child_of(FAILS, tmp_path) as child:
        assert exited(child) == 1
        (report,) = child.reports.read()
        assert isinstance(report, Report) and report.kind == "failed"
        assert report.cause.startswith("TypeError") and "Traceback" in report.traceback
        assert "TypeError" in child.log_tail()


def test_an_entry_that_cannot_be_found_is_reported(tmp_path: Path) -> None:
    with child_of(Spec("nowhere:f"), tmp_path) as child:
        assert exited(child) == 1
        assert "nowhere:f" in child.reports.read()[0].cause


@pytest.mark.parametrize(("how", "words"), [("kill", "was killed by SIGKILL"), ("terminate", "was killed by SIGTERM|exited with code 0")])
def test_how_it_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, words: str) -> None:
    (tmp_path / "entry_that_waits.py").write_text(ENDLESS_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    with child_of(ENDLESS, tmp_path) as child:
        until_sync(lambda: child.reports.read() == [Report("ready")], timeout=20)
        assert child.describe_exit() == f"engine process {child.pid} is running"
        getattr(child, how)()
        exited(child)
        assert re.search(words, child.describe_exit())
        child.kill()
        child.terminate()


DEAF_SOURCE = """
import signal, threading
def signals_itself():
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
def wait(reporter, run_dir):
    threading.Timer(0.1, signals_itself).start()
    threading.Event().wait(60)
"""


def test_a_stop_that_does_not_end_the_main_threads_wait_is_heard_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread takes the signal, as when it comes just before the wait begins."""
    (tmp_path / "entry_that_is_deaf.py").write_text(DEAF_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    with child_of(Spec("entry_that_is_deaf:wait"), tmp_path) as child:
        assert exited(child) == 0


def test_an_interrupt_of_the_parents_group_does_not_reach_it(tmp_path: Path) -> None:
    with child_of(ECHOES, tmp_path) as child:
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
        exited(child)


def test_a_dropped_child_is_ended(tmp_path: Path) -> None:
    child = launch(ECHOES, tmp_path)
    process = psutil.Process(child.pid)
    del child
    assert ended(process)


async def test_an_exit_is_seen_once(tmp_path: Path) -> None:
    seen: list[int] = []
    with child_of(ECHOES, tmp_path) as child:
        watch = ExitWatch(child, lambda: seen.append(1))
        await until(lambda: seen, timeout=20)
        watch.close()
        watch.close()
        await asyncio.sleep(0)
        assert seen == [1]
        assert child.exit_code() == 0


async def test_a_closed_watch_sees_nothing(tmp_path: Path) -> None:
    seen: list[int] = []
    with child_of(ECHOES, tmp_path) as child:
        watch = ExitWatch(child, lambda: seen.append(1))
        watch.close()
        await until(lambda: child.exit_code() is not None, timeout=20)
        assert seen == []
