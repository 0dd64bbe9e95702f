"""A session in a real notebook kernel."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from conftest import Kernel

UntilGone = Callable[[int], None]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jupyter_client's own

REMEMBER = """
import asyncio, sys
def facts():
    return asyncio.get_event_loop_policy(), asyncio.run, asyncio.get_running_loop(), type(asyncio.get_running_loop()).run_until_complete
before = facts()
HELLO = "Hello there world"
"""

EVERY_WAY = """
async def inside_a_task():
    one = await lab.generate(HELLO, max_tokens=3)
    two = lab.generate_sync(HELLO, max_tokens=3)
    three = "".join([piece.text async for piece in lab.stream(HELLO, max_tokens=3)])
    four = "".join(piece.text for piece in lab.stream(HELLO, max_tokens=3))
    return {one.text, two.text, three, four}
assert await asyncio.create_task(inside_a_task()) == {HELLO}
assert await inside_a_task() == {HELLO}
assert (await lab.chat("Hi", max_tokens=4)).choices == lab.chat_sync("Hi", max_tokens=4).choices
"""


def test_every_helper_works_from_every_kind_of_cell(kernel: Kernel) -> None:
    kernel.run(REMEMBER)
    kernel.run("assert lab.generate_sync(HELLO, max_tokens=3).text == HELLO")
    kernel.run("assert (await lab.generate(HELLO, max_tokens=3)).text == HELLO")
    kernel.run(EVERY_WAY)
    kernel.run("assert lab.stats().generation_tokens > 0 and lab.health().ok")
    kernel.run("assert lab.throughput()['generation_tokens_per_s'].max() > 0; repr(lab.plot_throughput())")
    kernel.run("assert facts() == before and 'nest_asyncio' not in sys.modules")
    kernel.run("with Session(Wiring(Spec('mqlab.engine.echo:build', {'path': lab.info.path})), 'aio') as other: other.chat_sync('Hi')")


BUSY = """
import threading
def tell():
    while lab.stats().running == 0:
        threading.Event().wait(0.01)
    print("running")
threading.Thread(target=tell).start()
{call}
"""


@pytest.mark.parametrize(
    "call",
    [
        "lab.generate_sync('Hello there world', max_tokens=8000, ignore_eos=True)",
        "await lab.generate('Hello there world', max_tokens=8000, ignore_eos=True)",
        "for _ in lab.stream('Hello there world', max_tokens=8000, ignore_eos=True): pass",
        "async for _ in lab.stream('Hello there world', max_tokens=8000, ignore_eos=True, n=3): pass",
    ],
)
def test_interrupt_aborts_and_the_session_goes_on(kernel: Kernel, call: str) -> None:
    _, error = kernel.outcome(BUSY.format(call=call), on_print=lambda _: os.kill(kernel.pid, signal.SIGINT))
    assert error.startswith(("KeyboardInterrupt", "CancelledError")), error
    kernel.run("while lab.stats().running: threading.Event().wait(0.01)")
    kernel.run("assert lab.generate_sync('Hello there world', max_tokens=3).text == 'Hello there world'")


def test_later_cells_hold_only_their_own_output(kernel: Kernel) -> None:
    for number in range(3):
        assert kernel.run(f"print('cell {number}', lab.generate_sync('Hello', max_tokens=1).text)") == f"cell {number} Hello\n"


def test_streams_without_a_file_number(kernel: Kernel) -> None:
    printed = kernel.run("""
import io, sys
class Plain:
    def write(self, text): return len(text)
    def flush(self): pass
kept = sys.stdout, sys.stderr
for stream in (Plain(), io.StringIO()):
    sys.stdout = sys.stderr = stream
    another = Session(lab_wiring := Wiring(Spec("mqlab.engine.echo:build", {"path": lab.info.path})), "v1")
    text = another.generate_sync("Hello there world", max_tokens=3).text
    another.stop()
    sys.stdout, sys.stderr = kept
    assert text == "Hello there world"
print("ok")
""")
    assert printed == "ok\n"


def engine_of(kernel: Kernel) -> int:
    return int(kernel.run("print(lab.info.pid)"))


def test_killed_kernel_leaves_no_engine(fresh_kernel: Kernel, until_gone: UntilGone) -> None:
    pid = engine_of(fresh_kernel)
    os.kill(fresh_kernel.pid, signal.SIGKILL)
    until_gone(pid)


@pytest.mark.parametrize("now", [True, False], ids=["now", "orderly"])
def test_restarted_kernel_leaves_no_engine(fresh_kernel: Kernel, until_gone: UntilGone, now: bool) -> None:
    pid = engine_of(fresh_kernel)
    assert psutil.pid_exists(pid)
    fresh_kernel.manager.restart_kernel(now=now)
    until_gone(pid)
    fresh_kernel.client.wait_for_ready(timeout=60)
    assert fresh_kernel.run("print('lab' in globals())") == "False\n"
