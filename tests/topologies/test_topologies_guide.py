"""docs/adding-a-topology.md does what it says: its blocks of Python are one file, and that is a layout that keeps the contract."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from mqlab import cli
from mqlab.contract import NAMES

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "adding-a-topology.md").read_text(encoding="utf-8")
SOURCE = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL))
QUICK = "start_returns abort_by_id fatal_begin parent_killed_while_idle"


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of the guide, in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("two_queues.py").write_text(SOURCE, encoding="utf-8")
    return "two_queues.py"


def test_the_layout_is_short() -> None:
    assert len(SOURCE.splitlines()) < 120


def test_the_layout_keeps_the_contract(layout: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")  # the user's own tests are no business of these
    assert cli.main(["check-topology", layout, "-k", QUICK]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("two_queues (msgpack): all 4 checks passed; ")
    assert "4/4" in shown.err, "progress"


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("codec", ["msgpack", "pickle"])
def test_the_layout_keeps_all_of_it(layout: str, codec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-topology", layout, "--full", "--codec", codec]) == 0, capsys.readouterr().out
    shown = capsys.readouterr().out
    assert f"two_queues ({codec}): all 1" in shown and all(theme in shown for theme in NAMES)


@pytest.mark.full
def test_the_failure_that_the_guide_shows(layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(layout)
    before = "        self._input.send(self._codec.encode(command))\n\n"
    assert SOURCE.count(before) == 1, "the body of _post"
    path.write_text(SOURCE.replace(before, "        pass\n\n"), encoding="utf-8")
    assert cli.main(["check-topology", layout, "-k", "abort_by_close"]) == 1
    shown = capsys.readouterr().out
    promised = GUIDE.partition("FAILED abort")[2].partition("```")[0]
    for line in promised.splitlines():
        # All but the numbers of lines, which change with the code, and the place of the package.
        for part in re.split(r":\d+|…|^ +at +|^ +the check ", line):
            assert part.strip() in shown


@pytest.mark.full
@pytest.mark.parametrize("arms", [["--topologies", "mq,two_queues.py"], ["--topology", "two_queues.py", "--vary", "overlap=on,off"]])
def test_the_layout_is_an_arm_of_a_comparison(layout: str, arms: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--num-prompts", "4", "--input-len", "4", "--output-len", "4", "--rounds", "3"]
    assert cli.main(["compare", "echo", *arms, *few]) == 0
    shown = capsys.readouterr().out
    assert "all arms gave the same tokens" in shown
    assert ("two_queues" in shown) == (arms[0] == "--topologies")
