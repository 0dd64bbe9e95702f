"""Children of a parent that is interrupted while it starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from mqlab.wire.spawn import spawn

WAITS = [sys.executable, "-c", "import sys; sys.stdin.read()"]


class Interrupted(subprocess.Popen[bytes]):
    """Interrupted between the fork and its return, where ``Popen`` would forget the child."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(10))  # where Python looks for signals
        assert psutil.pid_exists(self.pid)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", Interrupted)


@pytest.mark.usefixtures("interrupted")
def test_an_interrupt_while_a_child_starts_is_raised_when_the_child_has_ended() -> None:
    before = psutil.Process().children()
    with pytest.raises(KeyboardInterrupt):
        spawn(WAITS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert psutil.Process().children() == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interrupted")
def test_a_handler_that_raises_nothing_keeps_the_child() -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: calls.append(number))
    try:
        child = spawn(WAITS, stdin=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == [signal.SIGINT]
    child.communicate()
    assert child.returncode == 0


def test_a_child_hears_interrupts_itself() -> None:
    child = spawn([sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT).__name__)"], stdout=subprocess.PIPE)
    assert child.communicate()[0].split() == [b"default_int_handler"]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_python_does_not_handle_is_left_alone(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        spawn([sys.executable, "-c", ""]).wait()
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_start_children_too() -> None:
    children: list[subprocess.Popen[bytes]] = []
    start: Callable[[], object] = lambda: children.append(spawn(WAITS, stdin=subprocess.PIPE))  # noqa: E731
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    children[0].communicate()
    assert children[0].returncode == 0


def test_a_program_that_is_not_there_is_said() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        spawn(["/no-such-program"])
