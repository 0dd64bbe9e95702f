"""The shipped notebooks in a kernel (C59, C75): each output comes while its cell runs, and nothing is left running at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from mqlab.contract.processes import ended
from mqlab.contract.waiting import until_sync

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jupyter_client's own

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
OF_THE_KERNEL = ("status", "execute_input", "comm_msg", "comm_close")
"""Messages that put no output anywhere; those of a comm move what a widget shows."""


@dataclass
class Page:
    """A notebook that runs cell after cell.

    Attributes:
        late: outputs that came while another cell ran than the one that made them.
    """

    client: Any
    late: list[dict[str, Any]] = field(default_factory=list)

    def run(self, source: str) -> None:
        """Run a cell to its end."""
        cell = self.client.execute(source)
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            kind, parent = message["msg_type"], message["parent_header"].get("msg_id")
            assert kind != "error", "\n".join(message["content"]["traceback"])
            if parent != cell and kind not in OF_THE_KERNEL:
                self.late.append(message)
            if parent == cell and kind == "status" and message["content"]["execution_state"] == "idle":
                return


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_cell_is_compared_or_says_that_it_cannot_be(path: Path) -> None:
    """Else ``pytest --nbval``, which compares whatever is not marked, fails where ``--nbval-lax`` passes."""
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    unmarked = [
        cell.source for cell in code if ("NBVAL_CHECK_OUTPUT" in cell.source) == ("nbval-ignore-output" in cell.metadata.get("tags", ()))
    ]
    assert unmarked == []


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_shipped_notebook_speaks_in_time_and_leaves_nothing(path: Path, new_kernel: Any) -> None:
    page, process = Page(new_kernel.client), psutil.Process(new_kernel.pid)
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            page.run(cell.source)
    page.run("import threading; threading.Event().wait(1)")
    assert page.late == []
    until_sync(lambda: all(ended(child) for child in process.children(recursive=True)))


@pytest.mark.full
def test_a_shipped_notebook_that_fails_half_way_leaves_no_engine(new_kernel: Any) -> None:
    page, process = Page(new_kernel.client), psutil.Process(new_kernel.pid)
    code = [cell.source for cell in nbformat.read(NOTEBOOKS[0], as_version=4).cells if cell.cell_type == "code"]
    for source in code[: next(at for at, source in enumerate(code) if "dashboard()" in source) + 1]:
        page.run(source)
    children = process.children(recursive=True)
    assert children
    with pytest.raises(AssertionError, match="half-way"):
        page.run("assert False, 'half-way'")
    new_kernel.manager.shutdown_kernel()
    until_sync(lambda: all(ended(child) for child in children), timeout=10)
