"""The live dashboard: in a real kernel it moves whatever cells do; without a page it is a picture."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mqlab.contract.waiting import until_sync
from mqlab.lab.dashboard import Dashboard
from mqlab.lab.live import WIDGET_VIEW
from mqlab.lab.render import LIGHTS
from mqlab.lab.sampler import Sampler
from mqlab.topologies.mq import MqClient
from mqlab.topologies.v1 import V1Client
from mqlab.types import EngineStats, ModelInfo

if TYPE_CHECKING:
    from conftest import Kernel

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jupyter_client's own

GONE_PID = 2**22 + 1
"""Above what Linux gives out."""

Make = Callable[..., Sampler]


@pytest.fixture
def sampler() -> Iterator[Make]:
    """Samplers of made-up counters."""
    made: list[Sampler] = []

    def make(**counters: dict[str, int]) -> Sampler:
        pages = {writer.replace("_", "-"): page for writer, page in counters.items()}
        made.append(Sampler(lambda: EngineStats(stamp_ns=time.monotonic_ns(), running=3, blocks_used=1, blocks_total=4), lambda: pages))
        until_sync(lambda: len(made[-1].readings()) > 1)
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_words_and_picture_without_a_page(sampler: Make) -> None:
    dashboard = Dashboard(sampler(), MqClient.shape, "lab <1>")
    assert repr(dashboard).startswith("lab <1>: snapshot\n")
    assert "3 running, 0 waiting" in repr(dashboard)
    html = dashboard._repr_html_()
    assert html.count("<svg") == html.count('role="img"') == 2
    assert "lab &lt;1&gt;" in html
    assert "<script" not in html


def test_a_process_that_is_gone_is_named(sampler: Make) -> None:
    dashboard = Dashboard(sampler(**{f"engine_{GONE_PID}": {}}), MqClient.shape, "lab")
    assert repr(dashboard).startswith(f"lab: engine (pid {GONE_PID}) is gone\n")
    assert f"engine (pid {GONE_PID}) is gone" in dashboard._repr_html_()


def test_it_follows_the_model_that_comes_and_goes(sampler: Make) -> None:
    served = [ModelInfo(name="one", vocab_size=9, max_model_len=9, max_prompt_len=8)]
    dashboard = Dashboard(sampler(), MqClient.shape, "lab", info=lambda: served[-1])
    assert repr(dashboard).startswith("lab · one · mq: snapshot\n")
    for state in ("asleep", "unloaded"):
        served.append(msgspec.structs.replace(served[0], state=state))
        assert repr(dashboard).startswith(f"lab · one · mq: {state}\n") and state in dashboard._repr_html_()
        assert LIGHTS["ready"] not in dashboard._repr_html_()
    served.append(msgspec.structs.replace(served[0], name="two"))
    assert repr(dashboard).startswith("lab · two · mq: snapshot\n") and LIGHTS["ready"] in dashboard._repr_html_()


def test_the_end_of_the_session_is_shown(sampler: Make) -> None:
    readings = sampler()
    dashboard = Dashboard(readings, V1Client.shape, "lab")
    readings.stop()
    assert repr(dashboard).startswith("lab: stopped; the figures are its last\n")


SETUP = """
import asyncio, gc, itertools, sys, threading, time
import mqlab.lab.sampler
from mqlab.lab.dashboard import Dashboard
from mqlab.lab.sampler import Sampler
from mqlab.topologies.mq import MqClient
from mqlab.types import EngineStats, ModelInfo
mqlab.lab.sampler.INTERVAL_S = 0.01
counter = itertools.count()
class Counted(Sampler):
    refreshes = 0
    def pulse(self, seconds):
        self.refreshes += 1
        return super().pulse(seconds)
def start(interval=0.05):
    global sampler, dash
    sampler = Counted(lambda: EngineStats(stamp_ns=time.monotonic_ns(), generation_tokens=next(counter)))
    dash = Dashboard(sampler, MqClient.shape, "lab", interval=interval)
def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("mqlab-dashboard")]
async def turn():
    await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.02)
def block():
    threading.Event().wait(0.02)
"""


@dataclass(frozen=True)
class Cell:
    """A cell that ran: its id, and every message to the page from its begin to its end, whoever caused it."""

    id: str
    messages: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Messages of one kind."""
        return [message for message in self.messages if message["msg_type"] == kind]

    @property
    def own(self) -> list[str]:
        """Kinds of the messages that a page puts under this cell."""
        mine = [message for message in self.messages if message["parent_header"].get("msg_id") == self.id]
        return [message["msg_type"] for message in mine if message["msg_type"] not in ("status", "execute_input")]


def run(kernel: Kernel, code: str) -> Cell:
    """Run a cell to its end."""
    cell = Cell(kernel.client.execute(code), [])
    while not ends(cell):
        cell.messages.append(kernel.client.get_iopub_msg(timeout=60))
    assert not cell.of("error"), cell.of("error")
    return cell


def ends(cell: Cell) -> bool:
    if not cell.messages:
        return False
    last = cell.messages[-1]
    idle = last["msg_type"] == "status" and last["content"]["execution_state"] == "idle"
    return idle and last["parent_header"].get("msg_id") == cell.id


@pytest.fixture
def notebook(bare_kernel: Kernel) -> Iterator[Callable[[str], Cell]]:
    """Runs cells in a kernel that has ``start()``, which makes ``sampler`` and ``dash``."""
    run(bare_kernel, SETUP)
    yield lambda code: run(bare_kernel, code)
    run(bare_kernel, "sampler.stop(); dash = None\nwhile gc.collect() or threads(): block()")


Notebook = Callable[[str], Cell]

AWAITING = "enough = sampler.refreshes + 10\nwhile sampler.refreshes < enough: await turn()"
BLOCKING = AWAITING.replace("await turn()", "block()")


@pytest.mark.parametrize("busy", [AWAITING, BLOCKING], ids=["awaiting", "blocking"])
def test_it_moves_while_a_cell_works_and_touches_no_other_cell(notebook: Notebook, busy: str) -> None:
    view = notebook("start(); dash")
    cell = notebook(busy)
    updates = cell.of("comm_msg")
    assert len(updates) >= 8
    assert all(update["content"]["data"]["state"].keys() == {"value"} for update in updates)
    assert all("</strong> live<" in update["content"]["data"]["state"]["value"] for update in updates)
    assert {update["parent_header"]["msg_id"] for update in updates} == {view.id}
    assert notebook("print('marker')").own == ["stream"]


def test_the_first_bundle_reads_without_a_widget_too(notebook: Notebook) -> None:
    (first,) = notebook("start(); dash").of("display_data")
    data = first["content"]["data"]
    assert data.keys() == {"text/plain", "text/html", WIDGET_VIEW}
    assert data["text/plain"].startswith("lab: snapshot")
    assert "<svg" in data["text/html"]
    assert "</strong> snapshot<" in data["text/html"]


def test_close_leaves_a_static_picture_and_silence(notebook: Notebook) -> None:
    (first,) = notebook("start(); dash").of("display_data")
    cell = notebook("dash.close(); dash.close(); assert dash.closed and not threads()")
    (last,) = cell.of("update_display_data")
    assert last["content"]["transient"] == first["content"]["transient"]
    assert last["content"]["data"].keys() == {"text/plain", "text/html"}
    assert len(cell.of("comm_close")) == 3
    assert "comm_msg" not in {message["msg_type"] for message in notebook("for _ in range(10): block()").messages}
    (again,) = notebook("dash").of("display_data")
    assert again["content"]["data"].keys() == {"text/plain", "text/html"}


def test_it_ends_with_its_session(notebook: Notebook) -> None:
    view = notebook("start(); dash")
    cell = notebook("sampler.stop()\nwhile threads(): block()\nassert dash.closed")
    (last,) = cell.of("update_display_data")
    assert last["content"]["data"]["text/plain"].startswith("lab: stopped; the figures are its last")
    assert last["parent_header"]["msg_id"] == view.id


def test_dropped_it_leaves_no_thread(notebook: Notebook) -> None:
    notebook("start(); dash._ipython_display_(); assert threads()")
    cell = notebook("del dash\nwhile gc.collect() or threads(): block()\ndash = None")
    assert len(cell.of("update_display_data")) == 1


def test_shown_twice_it_is_one_widget_and_one_thread(notebook: Notebook) -> None:
    notebook("start()")
    first, second = (notebook("dash").of("display_data")[0]["content"]["data"][WIDGET_VIEW]["model_id"] for _ in range(2))
    assert first == second
    notebook("assert len(threads()) == 1")


def test_without_ipywidgets_it_is_a_picture(notebook: Notebook) -> None:
    notebook("kept = sys.modules.get('ipywidgets'); sys.modules['ipywidgets'] = None; start()")
    cell = notebook("dash")
    notebook("assert not threads(); sys.modules['ipywidgets'] = kept" + "\nif kept is None: del sys.modules['ipywidgets']")
    (bundle,) = cell.of("display_data")
    assert bundle["content"]["data"].keys() == {"text/plain", "text/html"}


def test_show_static_starts_nothing(notebook: Notebook) -> None:
    notebook("start()")
    (bundle,) = notebook("dash.show_static()").of("display_data")
    assert bundle["content"]["data"].keys() == {"text/plain", "text/html"}
    notebook("assert not threads()")


def test_a_view_that_fails_stands_still_and_says_so_in_the_log(notebook: Notebook) -> None:
    notebook("import logging; said = []; logging.getLogger('mqlab.lab.live').addFilter(lambda record: said.append(record.msg))")
    notebook("start(); dash")
    cell = notebook("sampler.pulse = None\nwhile threads(): block()\nassert said == ['the dashboard failed and stands still'], said")
    assert "stream" not in cell.own


@pytest.mark.full
@pytest.mark.parametrize(
    "busy", ["await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=6)", "threading.Event().wait(6)"]
)
def test_six_seconds_show_eight_updates_at_the_default_rate(notebook: Notebook, busy: str) -> None:
    notebook("start(0.5); dash")
    assert len(notebook(busy).of("comm_msg")) >= 8
