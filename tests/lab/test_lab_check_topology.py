"""``%mqlab check-topology``, and sessions over a layout in a file: a user's code breaks nothing here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from mqlab.contract.verdict import Verdict
from mqlab.errors import ConfigError
from mqlab.lab.completion import complete
from mqlab.lab.magics import parser
from mqlab.lab.registry import SESSIONS
from mqlab.lab.serving import served_of
from mqlab.lab.session import Session

Magic = Callable[[str], str]
Start = Callable[..., Session]
LAYOUT = """
import os
from mqlab.topologies.inproc import InprocClient

RIG = {"sees_hangs": False, "steps_apart": False}

class Mine(InprocClient):
    async def _stop(self):
        await super()._stop()
        if CRASHES:
            os.abort()
"""


def test_a_crash_is_a_line_of_the_verdict(magic: Magic, shell: InteractiveShell, tmp_path: Path) -> None:
    path = tmp_path / "crashing.py"
    path.write_text(LAYOUT + "CRASHES = True\n")
    shown = magic(f"check-topology {path} -k 'calls.ping build_failure' --workers 1")
    verdict = shell.user_ns["verdict"]
    assert isinstance(verdict, Verdict)
    assert "2 of 2 checks failed" in shown and "2 of 2 checks failed" in repr(verdict)
    assert "the process ended by SIGABRT" in verdict._repr_html_()
    path.write_text(LAYOUT + "CRASHES = False\n")
    assert magic(f"check-topology {path} -k build_failure -o good --quiet") == ""
    assert shell.user_ns["good"].ok


def test_a_session_over_a_file(start: Start, tmp_path: Path) -> None:
    """Its front is another process, which finds the file by itself."""
    path = tmp_path / "hosted_layout.py"
    path.write_text(LAYOUT + "CRASHES = False\n")
    session = start(str(path))
    assert session.generate_sync("Hello there world", max_tokens=3).text


def test_a_file_that_cannot_be_served_costs_no_session(magic: Magic, tmp_path: Path) -> None:
    path = tmp_path / "unservable.py"
    magic("serve smollm2-135m")
    session = SESSIONS.get("lab")
    path.write_text("class Mine(:")
    with pytest.raises(ConfigError, match=r"unservable\.py, line 1: invalid syntax"):
        magic(f"serve smollm2-135m --topology {path}")
    assert SESSIONS.get("lab") is session


def test_an_edited_file_is_another_thing_to_serve(model_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "served_layout.py"
    path.write_text(LAYOUT + "CRASHES = False\n")
    arguments = parser().parse(["serve", str(model_folder), "--topology", str(path)])
    before = served_of(arguments)
    assert served_of(arguments) == before
    path.write_text(LAYOUT + "CRASHES = not True\n")
    assert served_of(arguments) != before


def test_completion_knows_layouts_and_files(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    assert complete(f"check-topology {tmp_path}/mi") == [f"{tmp_path}/mine.py"]
    assert complete("check-topology v") == ["v1"]
    assert complete(f"serve smollm2-135m --topology {tmp_path}/mi") == [f"{tmp_path}/mine.py"]
    assert complete("serve smollm2-135m --topology v") == ["v1"]
