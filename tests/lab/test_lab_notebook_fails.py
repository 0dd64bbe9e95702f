"""A notebook that fails half-way, run as test tools run it: its engine ends with its kernel (C59)."""

from __future__ import annotations

from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from mqlab.contract.processes import gone
from mqlab.contract.waiting import until_sync

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jupyter_client's own

ECHO = """
from mqlab.lab.session import Session
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring
lab = Session(Wiring(Spec("mqlab.engine.echo:build", {{"path": {folder!r}, "device_time": 0.002}})))
print(lab.info.pid)
"""
TRAFFIC = """
import asyncio
task = asyncio.create_task(lab.generate("Hello there world", max_tokens=8000, ignore_eos=True))
while not lab.stats().running:
    await asyncio.sleep(0)
print("running")
"""


def test_a_failing_cell_leaves_no_engine(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    sources = [ECHO.format(folder=str(model_folder)), TRAFFIC, "assert False, 'half-way'", "lab.stop()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    started: list[bool] = []

    def note_engine(cell: nbformat.NotebookNode, cell_index: int) -> None:
        if cell_index == 2:
            started.append(psutil.pid_exists(int(notebook.cells[0].outputs[0].text)))

    with pytest.raises(CellExecutionError, match="half-way"):
        NotebookClient(notebook, timeout=60, kernel_name="python3", on_cell_execute=note_engine).execute()
    assert started == [True] and notebook.cells[1].outputs[0].text == "running\n"
    assert notebook.cells[3].execution_count is None
    engine = int(notebook.cells[0].outputs[0].text)
    until_sync(lambda: gone(engine), timeout=10)
