"""The dashboard of a real session in a real kernel (C34, C35): it moves whatever a cell does, and speaks in no other cell."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jupyter_client's own

INTERVAL_S = 0.5
NOTHING_OF_ITS_OWN = ("status", "execute_input")


class Client(Protocol):
    """What of jupyter_client's client is used."""

    def execute(self, code: str) -> str: ...
    def get_iopub_msg(self, timeout: float) -> dict[str, Any]: ...


@dataclass
class Cell:
    """A cell that ran, and every message to the page from its begin to its end, whoever caused it."""

    id: str
    messages: list[dict[str, Any]] = field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["msg_type"] == kind]

    @property
    def own(self) -> list[tuple[str, str]]:
        """What a page puts under this cell: kind, and text of a stream."""
        mine = [message for message in self.messages if message["parent_header"].get("msg_id") == self.id]
        return [(m["msg_type"], m["content"].get("text", "")) for m in mine if m["msg_type"] not in NOTHING_OF_ITS_OWN]

    @property
    def pictures(self) -> list[str]:
        """Of the live view, in the order of their coming."""
        return [message["content"]["data"]["state"]["value"] for message in self.of("comm_msg")]

    @property
    def over(self) -> bool:
        ends = (m for m in self.messages[-1:] if m["msg_type"] == "status" and m["parent_header"].get("msg_id") == self.id)
        return any(end["content"]["execution_state"] == "idle" for end in ends)


Run = Callable[..., Cell]

SETUP = """
import asyncio, gc, pathlib, threading, time
def views():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("mqlab-dashboard")]
async def turn():
    await asyncio.to_thread(threading.Event().wait, 0.02)
def traffic():
    return asyncio.create_task(lab.generate("Hello there world", max_tokens=8000, ignore_eos=True))
"""


@pytest.fixture
def run(kernel: Any) -> Iterator[Run]:
    """Runs cells in a kernel with ``lab``, an echo session."""

    def run(code: str, on_message: Callable[[Cell], object] = lambda cell: None) -> Cell:
        client: Client = kernel.client
        cell = Cell(client.execute(code))
        while not cell.over:
            cell.messages.append(client.get_iopub_msg(timeout=60))
            on_message(cell)
        assert not cell.of("error"), cell.of("error")
        return cell

    run(SETUP)
    yield run
    run("board.close(); task.cancel(); assert not views()")


AWAIT = "while not pathlib.Path({flag!r}).exists(): await turn()"
BLOCK = "while not pathlib.Path({flag!r}).exists(): threading.Event().wait(0.02)"


def until_it_moved(flag: Path, times: int) -> Callable[[Cell], object]:
    """Ends the running cell once the view has come so often."""
    return lambda cell: flag.touch() if len(cell.pictures) >= times else None


@pytest.mark.parametrize("busy", [AWAIT, BLOCK], ids=["awaiting", "blocking"])
def test_a_sessions_dashboard_moves_while_a_cell_works(run: Run, tmp_path: Path, busy: str) -> None:
    flag = tmp_path / "moved"
    run("task = traffic(); board = lab.dashboard()\nwhile not lab.stats().running: await turn()")
    view = run("board")
    cell = run(f"begun = time.monotonic()\n{busy.format(flag=str(flag))}\nprint(time.monotonic() - begun)", until_it_moved(flag, 4))
    seconds = float(cell.of("stream")[0]["content"]["text"])
    assert 4 <= len(cell.pictures) <= seconds / INTERVAL_S + 1, "no burst of pictures that were due long ago"
    assert len(set(cell.pictures)) == len(cell.pictures), "each is new"
    assert all(">running<" in picture for picture in cell.pictures)
    assert {message["parent_header"]["msg_id"] for message in cell.of("comm_msg")} == {view.id}
    assert cell.own == [("stream", cell.of("stream")[0]["content"]["text"])]


def test_background_work_speaks_in_no_other_cell(run: Run) -> None:
    """C35: requests run, the view moves, the engine logs; the cells that follow hold their markers."""
    assert run("task = traffic(); board = lab.dashboard(); lab.log()").own == [("execute_result", "")]
    view = run("board")
    assert [kind for kind, _ in view.own] == ["comm_open"] * 3 + ["display_data"]
    wait = "for _ in range(15): await turn()"
    cells = [run(f"{wait}\nprint('marker {number}')") for number in range(4)]
    assert [cell.own for cell in cells] == [[("stream", f"marker {number}\n")] for number in range(4)]
    updates = [message for cell in cells for message in cell.of("comm_msg")]
    assert updates and {message["parent_header"]["msg_id"] for message in updates} == {view.id}
    assert not [message for cell in cells for message in cell.of("stream") if message["parent_header"]["msg_id"] != cell.id]


def test_a_closed_view_is_silent_and_leaves_no_task(run: Run) -> None:
    run("task = traffic(); before = len(asyncio.all_tasks()); board = lab.dashboard()")
    run("board")
    closed = run("board.close(); assert not views() and len(asyncio.all_tasks()) == before, asyncio.all_tasks()")
    (last,) = closed.of("update_display_data")
    assert last["content"]["data"].keys() == {"text/plain", "text/html"}
    after = run("end = time.monotonic() + 1.2\nwhile time.monotonic() < end: await turn()")
    assert after.own == [] and not after.of("comm_msg") and not after.of("update_display_data")


def test_an_interrupt_ends_the_cell_and_not_the_view(run: Run, kernel: Any, tmp_path: Path) -> None:
    run("task = traffic(); board = lab.dashboard()")
    run("board")
    _, error = kernel.outcome("print('now'); threading.Event().wait(60)", on_print=lambda _: os.kill(kernel.pid, signal.SIGINT))
    assert error.startswith("KeyboardInterrupt")
    flag = tmp_path / "moved"
    assert len(run(AWAIT.format(flag=str(flag)), until_it_moved(flag, 2)).pictures) >= 2


@pytest.mark.full
@pytest.mark.parametrize("busy", ["await asyncio.to_thread({wait})", "({wait})()"], ids=["awaiting", "blocking"])
def test_six_seconds_of_a_session_show_eight_pictures(run: Run, busy: str) -> None:
    run("task = traffic(); board = lab.dashboard()")
    run("board")
    assert 8 <= len(run(busy.format(wait="lambda: threading.Event().wait(6)")).pictures) <= 13
