"""``check-topology``: each fault of a layout is found by the check that is about it, and hurts no other."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mqlab.contract.options import CheckConfig
from mqlab.contract.processes import gone
from mqlab.contract.suite import check_topology
from mqlab.contract.verdict import Result, Verdict
from mqlab.contract.waiting import until_sync
from mqlab.errors import ConfigError

PATCHWORK = '''
"""A layout with a fault for every taste."""
import asyncio, os
from mqlab.topologies.inproc import InprocClient
from mqlab.types import Abort, Call, Step

RIG = {"sees_hangs": False, "steps_apart": False}
LEAKED = []

class Patchwork(InprocClient):
    def _post(self, command):
        if type(command) is Abort:
            return  # drops aborts
        if type(command) is Call and command.method == "ping":
            print("here it ends", flush=True)
            os.abort()
        super()._post(command)

    def _deliver(self, event):
        if type(event) is Step:
            for delta in event.deltas:
                if delta.finish and not delta.id.isascii():
                    delta.tokens.pop()  # loses the last token
        super()._deliver(event)

    async def _stop(self):
        await super()._stop()
        LEAKED.append(asyncio.create_task(asyncio.Event().wait()))  # leaks a task
'''
STUCK = """
import threading
from mqlab.topologies.inproc import InprocClient

class Stuck(InprocClient):
    def __init__(self, wiring):
        stand_still()

def stand_still():
    threading.Event().wait(1000)
"""
ENDLESS = """
import os, pathlib, threading
from mqlab.topologies.inproc import InprocClient

class Endless(InprocClient):
    async def _start(self):
        pathlib.Path({begun!r}).write_text(f"{{os.getpid()}}.")
        threading.Event().wait()
"""
ASKED = "start_returns abort_by_close ids_of_any_text calls.ping close_leaves_nothing call_timeout_leaves"


@pytest.fixture(scope="module")
def patchwork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("layouts") / "patchwork.py"
    path.write_text(PATCHWORK)
    return path


@pytest.fixture(scope="module")
def verdict(patchwork: Path) -> Verdict:
    return check_topology(CheckConfig(topology=str(patchwork), only=ASKED, workers=3), progress=False)


def failure(verdict: Verdict, name: str) -> tuple[Result, str, str]:
    """A failed check, what was found, and the code on its way."""
    (result,) = (one for one in verdict.failed if one.case.name == name)
    assert result.outcome is not None
    return result, result.outcome.error, "\n".join(line.code for line in result.outcome.trail)


def test_what_is_well_passes_beside_what_is_not(verdict: Verdict) -> None:
    status = {result.case.name: result.status for result in verdict.results}
    assert status.pop("start_returns_when_healthy") == "passed"
    assert status.pop("call_timeout_leaves_the_engine") == "does not apply"
    assert len(status) == 4 and set(status.values()) == {"failed"}
    assert not verdict.ok


def test_a_dropped_abort_is_found_where_it_was_waited_for(verdict: Verdict) -> None:
    result, error, trail = failure(verdict, "abort_by_close")
    assert error.startswith("TimeoutError: ")
    assert "await aborted(client, 1)" in trail
    assert Path(result.case.where.partition(":")[0]).name == "abort.py"


def test_a_lost_token_is_shown_with_the_values(verdict: Verdict) -> None:
    _, error, trail = failure(verdict, "ids_of_any_text")
    assert "At index 1 diff: ([3], 'length') != ([3, 4], 'length')" in error
    assert trail.startswith("assert answers == [")


def test_a_leaked_task_is_found(verdict: Verdict) -> None:
    assert "tasks left" in failure(verdict, "close_leaves_nothing")[1]


def test_a_crash_costs_its_own_check_only(verdict: Verdict) -> None:
    result, error, _ = failure(verdict, "ping")
    assert error == "the process ended by SIGABRT"
    assert result.outcome is not None
    assert "here it ends" in result.outcome.printed and "in _post" in result.outcome.printed, "with the stack of the crash"


def test_a_hang_is_ended_and_its_stack_shown(tmp_path: Path) -> None:
    path = tmp_path / "stuck.py"
    path.write_text(STUCK)
    verdict = check_topology(CheckConfig(topology=str(path), only="calls.ping", deadline=1), progress=False)
    result, error, _ = failure(verdict, "ping")
    assert "stood still" in error
    assert result.outcome is not None and "in stand_still" in result.outcome.printed


def test_a_verdict_reads_in_a_terminal_and_in_a_notebook(verdict: Verdict) -> None:
    assert repr(verdict).startswith("<Verdict: patchwork (msgpack): 4 of 5 checks failed, 1 does not apply; ")
    text, page = str(verdict), verdict._repr_html_()
    demand = "demanded  ping. Control calls: answered"
    for part in ("FAILED calls: ping", demand, "found     the process ended by SIGABRT", "printed   here it ends"):
        assert part in text and part in page
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()[3:8]}
    assert {theme: cells[0] for theme, cells in rows.items()} == dict.fromkeys(("start", "requests", "abort", "calls", "close"), "1")
    assert "✓ passed" in page and "✗ failed" in page, "never colour alone"


def test_a_layout_that_cannot_be_loaded_or_a_check_that_is_not_there(patchwork: Path) -> None:
    broken = patchwork.with_name("unloadable.py")
    broken.write_text("import os; os._exit(3)")
    with pytest.raises(ConfigError, match=r"unloadable\.py could not be loaded: the process ended with status 3"):
        check_topology(CheckConfig(topology=str(broken)), progress=False)
    with pytest.raises(ConfigError, match=r"--only='no_such': no check has .* the themes are start, requests, push, abort"):
        check_topology(CheckConfig(topology=str(patchwork), only="no_such"), progress=False)


@pytest.fixture
def endless(tmp_path: Path) -> tuple[Path, Path]:
    """A layout whose client never starts, and the file that then says which process it is in."""
    path, begun = tmp_path / "endless.py", tmp_path / "begun"
    path.write_text(ENDLESS.format(begun=str(begun)))
    return path, begun


def pid_in(begun: Path) -> int:
    until_sync(lambda: begun.exists() and begun.read_text().endswith("."), timeout=20)
    return int(begun.read_text()[:-1])


def test_an_interrupt_ends_it(endless: tuple[Path, Path]) -> None:
    path, begun = endless
    found: list[int] = []

    def interrupt() -> None:
        found.append(pid_in(begun))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        check_topology(CheckConfig(topology=str(path), only="start_returns"), progress=False)
    interrupter.join()
    assert gone(found[0])


def test_the_end_of_the_parent_ends_it(endless: tuple[Path, Path]) -> None:
    path, begun = endless
    with subprocess.Popen(
        [sys.executable, "-m", "mqlab", "check-topology", str(path), "-k", "start_returns"], stderr=subprocess.PIPE
    ) as parent:
        pid = pid_in(begun)
        parent.kill()
    until_sync(lambda: gone(pid))
