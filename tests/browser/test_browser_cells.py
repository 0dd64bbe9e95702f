"""What a cell shows while other things go on in the same kernel (C34, C35), and what interrupting and restarting do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from jupyterpage import Notebook, wait_until_gone

pytestmark = pytest.mark.browser

Open = Callable[..., Notebook]

MOVING = """
import asyncio, itertools, threading
import ipywidgets
shown, stop = ipywidgets.HTML("0"), threading.Event()
def move():
    for i in itertools.count(1):
        if stop.wait(0.25):
            return
        shown.value = f"{i} tokens/s"
mover = threading.Thread(target=move)
mover.start()
shown
"""
DASHBOARD = """
import asyncio
lab.dashboard()
"""
LONG = "ignore_eos=True, max_tokens=8000"


@pytest.fixture
def echo(model_folder: Path) -> str:
    """A cell that starts an engine without a model, with the default model's tokenizer."""
    return f"""
from mqlab.lab.session import Session
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring
lab = Session(Wiring(Spec("mqlab.engine.echo:build", {{"path": {str(model_folder)!r}, "device_time": 0.01}})))
print("engine", lab.info.pid)
"""


def values_while(notebook: Notebook, view: int, busy: int) -> set[str]:
    """The different texts that one cell shows while another runs."""
    seen: set[str] = set()
    notebook.run(busy, wait=False)
    notebook.until(lambda: "*" in notebook.prompts()[busy])

    def ended() -> bool:
        seen.add(notebook.output(view))
        return "*" not in notebook.prompts()[busy]

    notebook.until(ended)
    return seen


def engine_of(notebook: Notebook, cell: int = 0) -> int:
    """The id that ``echo`` printed."""
    return int(notebook.output(cell).split()[1])


def test_a_widget_moves_while_a_cell_awaits(open_notebook: Open) -> None:
    notebook = open_notebook("widget.ipynb", MOVING, "await asyncio.to_thread(threading.Event().wait, 6)", "stop.set(); mover.join()")
    notebook.run(0)
    assert len(values_while(notebook, view=0, busy=1)) >= 8
    notebook.run(2)


def test_the_dashboard_moves_while_a_cell_awaits(open_notebook: Open, echo: str) -> None:
    work = "await asyncio.gather(*(lab.generate('Hello there world', max_tokens=600, ignore_eos=True) for _ in range(4)))"
    notebook = open_notebook("dashboard.ipynb", echo, DASHBOARD, work, "lab.stop()")
    notebook.run(0)
    notebook.run(1)
    assert "tokens/s" in notebook.output(1)
    assert len(values_while(notebook, view=1, busy=2)) >= 8
    notebook.run(3)
    assert notebook.failures() == []


def test_output_lands_in_its_own_cell(open_notebook: Open, echo: str) -> None:
    """Whatever runs in the background: requests, and a view that moves."""
    traffic = f"""
import asyncio
task = asyncio.create_task(lab.generate('Hello there world', {LONG}))
print("started")
"""
    markers = [f"await asyncio.to_thread(threading.Event().wait, 0.5); print('marker {i}')" for i in range(4)]
    notebook = open_notebook("markers.ipynb", echo, MOVING, traffic, *markers, "stop.set(); mover.join(); task.cancel(); lab.stop()")
    for cell in range(8):
        notebook.run(cell)
    assert [notebook.output(cell) for cell in range(2, 8)] == ["started", *(f"marker {i}" for i in range(4)), ""]
    assert notebook.output(0).startswith("engine ") and notebook.output(0).count("\n") == 0
    assert notebook.output(1).endswith("tokens/s")


def test_the_stop_button_ends_the_request_and_not_the_engine(open_notebook: Open, echo: str) -> None:
    notebook = open_notebook("interrupt.ipynb", echo, f"await lab.generate('Hello there world', {LONG})", "print(lab.stats().running)")
    notebook.run(0)
    notebook.run(1, wait=False)
    notebook.until(lambda: "*" in notebook.prompts()[1])
    notebook.page.locator("[data-jp-item-name=interrupt]").click()
    notebook.until(lambda: notebook.failures() and "*" not in notebook.prompts()[1])
    assert notebook.failures()[0].startswith(("KeyboardInterrupt", "CancelledError"))
    notebook.until(lambda: (notebook.run(2), notebook.output(2) == "0")[1])
    assert psutil.pid_exists(engine_of(notebook))
    assert len(notebook.failures()) == 1


def test_a_restarted_kernel_leaves_no_engine(open_notebook: Open, echo: str) -> None:
    notebook = open_notebook("restart.ipynb", echo, "print('lab' in globals())")
    notebook.run(0)
    engine = engine_of(notebook)
    assert psutil.Process(engine).is_running() and engine != os.getpid()
    notebook.menu("Kernel", "Restart Kernel…")
    notebook.page.locator(".jp-Dialog .jp-mod-accept").click()
    wait_until_gone(notebook, engine)
    notebook.until_idle()
    notebook.run(1)
    assert notebook.output(1) == "False"
