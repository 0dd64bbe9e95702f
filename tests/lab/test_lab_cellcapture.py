"""``%%mqlab profile`` in a real kernel: the capture lasts as long as its cell, whatever the cell does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Kernel

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jupyter_client's own

SETUP = """
%load_ext mqlab
import asyncio, threading
from mqlab.lab.registry import SESSIONS
SESSIONS.add("lab", lab, None)
LONG = dict(max_tokens=8000, ignore_eos=True)
def until(what):
    while not what():
        threading.Event().wait(0.01)
def sampling():
    return [each for each in threading.enumerate() if each.name == "mqlab-cell-capture"]
def seen(number):
    import psutil
    return sum("py-spy" in each.name() for each in psutil.Process().children(recursive=True)) >= number
def worked():
    until(lambda: seen(2))
    begin = lab.stats().generation_tokens
    until(lambda: lab.stats().generation_tokens > begin + 200)
"""

BLOCK = """
load = threading.Thread(target=worked)
load.start()
while load.is_alive():
    lab.generate_sync("Hello there world", max_tokens=50, ignore_eos=True)
"""

AWAIT = """
load = asyncio.create_task(asyncio.to_thread(worked))
while not load.done():
    await lab.generate("Hello there world", max_tokens=50, ignore_eos=True)
"""

TELL = """
def tell():
    worked()
    print("go", flush=True)
threading.Thread(target=tell).start()
"""


@dataclass
class Shown:
    """What a cell showed, in order of kind, and the name of its error."""

    data: list[dict[str, Any]] = field(default_factory=list)
    out: str = ""
    err: str = ""
    error: str = ""

    @property
    def plain(self) -> list[str]:
        return [each["text/plain"] for each in self.data]


Run = Callable[..., Shown]


@pytest.fixture(scope="module")
def prepared(kernel: Kernel) -> Kernel:
    kernel.run(SETUP)
    return kernel


@pytest.fixture
def run(prepared: Kernel) -> Iterator[Run]:
    """Runs a cell; afterwards nothing of a capture is left in the kernel."""

    def run(code: str, on_print: Callable[[], None] = lambda: None) -> Shown:
        shown = Shown()

        def hook(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                setattr(shown, content["name"][3:], getattr(shown, content["name"][3:]) + content["text"])
                on_print()
            elif message["msg_type"] in ("display_data", "execute_result"):
                shown.data.append(content["data"])
            elif message["msg_type"] == "error":
                shown.error = content["ename"]

        prepared.client.execute_interactive(code, timeout=60, output_hook=hook)
        return shown

    yield run
    prepared.run("assert not sampling() and not get_ipython().events.callbacks['post_run_cell']")
    prepared.run("assert not seen(1) and SESSIONS.live() == {'lab': lab}")


def test_a_cell_that_blocks(run: Run) -> None:
    shown = run(f"%%mqlab profile -o blocking --idle\n{BLOCK}\nprint('done')\n7")
    assert shown.plain[0] == "7" and shown.plain[1].startswith("Capture(front, engine: ") and shown.out == "done\n"
    assert shown.data[1]["text/html"].startswith("<figure") and not shown.error and not shown.err
    assert "mqlab/engine" in run("print(blocking)").out


def test_a_cell_that_awaits(run: Run) -> None:
    shown = run(f"%%mqlab profile --idle\n{AWAIT}\nprint('done')")
    assert shown.out == "done\n" and shown.plain[0].startswith("Capture(front, engine: ")
    assert run("type(capture).__name__").plain == ["'Capture'"]


def test_a_cell_that_fails_is_told_with_its_capture(run: Run) -> None:
    shown = run(f"%%mqlab profile -o failing --idle --quiet\n{BLOCK}\n1 / 0")
    assert shown.error == "ZeroDivisionError" and shown.data == []
    assert "engine" in run("print(failing)").out


@pytest.mark.parametrize(
    "wait", ["lab.generate_sync('Hello', **LONG)", "await lab.generate('Hello', **LONG)"], ids=["blocking", "awaiting"]
)
def test_a_cell_that_is_interrupted_keeps_what_was_seen(run: Run, prepared: Kernel, wait: str) -> None:
    shown = run(f"%%mqlab profile -o cut --idle\n{TELL}\n{wait}", lambda: os.kill(prepared.pid, signal.SIGINT))
    assert shown.error in ("KeyboardInterrupt", "CancelledError") and shown.plain[0].startswith("Capture(")


def test_seconds_end_the_capture_and_not_the_cell(run: Run) -> None:
    shown = run("%%mqlab profile --seconds 1 --idle -o short\nuntil(sampling)\nuntil(lambda: not sampling())\nprint('went on')")
    assert shown.out == "went on\n" and "in 1.0 s" in shown.plain[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nosuch", "no session 'nosuch'"),
        ("99999999", "no engine '99999999'"),
        ("--folder /proc/nowhere --idle", "/proc/nowhere"),
    ],
)
def test_what_cannot_be_captured_is_told_after_the_cell_ran(run: Run, arguments: str, words: str) -> None:
    shown = run(f"%%mqlab profile {arguments} -o none\n{BLOCK if 'folder' in arguments else ''}\nprint('ran')")
    assert shown.out == "ran\n" and not shown.error and shown.data == []
    assert shown.err.startswith("%%mqlab profile: ") and words in shown.err
    assert run("none").error == "NameError"


@pytest.mark.parametrize(
    ("cell", "error"),
    [
        ("%%mqlab profile --nope\nprint('ran')", "ConfigError"),
        ("%%mqlab profile --seconds 0\nprint('ran')", "ConfigError"),
        ("%%mqlab profile\nthis is no Python", "SyntaxError"),
    ],
)
def test_a_cell_that_cannot_begin_does_not(run: Run, cell: str, error: str) -> None:
    shown = run(cell)
    assert shown.error == error and shown.out == "" and shown.data == []


def test_help_comes_before_the_body(run: Run) -> None:
    shown = run("%%mqlab profile --help\nprint('ran')")
    assert shown.out.startswith("usage: mqlab profile") and shown.out.endswith("ran\n") and not shown.err
