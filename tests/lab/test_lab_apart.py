"""Calls in a process of their own: results and errors come back, and nobody is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mqlab.contract.waiting import until_sync
from mqlab.errors import BenchError, ConfigError, EngineStartError
from mqlab.lab.apart import run_apart
from mqlab.wire.spec import Spec

UntilGone = Callable[[int], None]

MODULE = """
import os, pathlib, sys, threading
from mqlab.errors import ConfigError, EngineStartError

class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

def twice(value):
    print("on its way", file=sys.stderr)
    return os.getpid(), value * 2

def wrong():
    raise ConfigError("--x=1 is wrong")

def start():
    raise EngineStartError("it failed", 3, "last words")

def broken():
    return {}["missing"]

def odd():
    raise Odd(1, 2)

def unpicklable():
    return threading.Lock()

def die():
    os._exit(3)

def wait(path):
    part = pathlib.Path(path + ".part")
    part.write_text(str(os.getpid()))
    part.rename(path)
    threading.Event().wait()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that only this process's path has."""
    (tmp_path / "apart_calls.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def call(name: str, **kwargs: object) -> Spec:
    return Spec(f"apart_calls:{name}", kwargs)


def test_the_result_comes_from_another_process(capfd: pytest.CaptureFixture[str]) -> None:
    pid, value = run_apart(call("twice", value=21))
    assert pid != os.getpid() and value == 42
    assert capfd.readouterr().err == "on its way\n"
    assert run_apart(call("twice", value=21), quiet=True)[1] == 42
    assert capfd.readouterr().err == ""


def test_errors_raised_on_purpose_come_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"^--x=1 is wrong$") as refused:
        run_apart(call("wrong"))
    assert not hasattr(refused.value, "__notes__")
    with pytest.raises(EngineStartError) as failed:
        run_apart(call("start"))
    assert (failed.value.exit_code, failed.value.log_tail) == (3, "last words")
    assert capfd.readouterr() == ("", "")


def test_other_errors_bring_where_they_came_from() -> None:
    with pytest.raises(KeyError, match="missing") as raised:
        run_apart(call("broken"))
    assert 'return {}["missing"]' in raised.value.__notes__[0]


def test_errors_that_cannot_cross_are_told() -> None:
    with pytest.raises(BenchError, match="Odd: 1 and 2"):
        run_apart(call("odd"))
    with pytest.raises(TypeError, match="cannot pickle"):
        run_apart(call("unpicklable"))
    with pytest.raises(BenchError, match="status 3"):
        run_apart(call("die"))


def test_an_interrupt_ends_the_process(tmp_path: Path, until_gone: UntilGone) -> None:
    began = tmp_path / "pid"

    def interrupt() -> None:
        until_sync(began.exists, timeout=20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        run_apart(call("wait", path=str(began)))
    interrupter.join()
    until_gone(int(began.read_text()))


def test_the_end_of_the_parent_ends_the_process(tmp_path: Path, until_gone: UntilGone) -> None:
    began = tmp_path / "pid"
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from mqlab.lab.apart import run_apart
from mqlab.wire.spec import Spec
run_apart(Spec("apart_calls:wait", {{"path": {str(began)!r}}}))
"""
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        until_sync(began.exists, timeout=20)
        parent.kill()
    until_gone(int(began.read_text()))
