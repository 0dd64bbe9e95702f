"""What the tab key offers on a ``%mqlab`` line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.core.interactiveshell import InteractiveShell

from mqlab.contract.waiting import until_sync

Offer = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def offer(shared_shell: InteractiveShell) -> Offer:
    """Lines after one of the candidates is taken, as a notebook's front end gets them from the kernel."""
    shared_shell.run_line_magic("mqlab", "serve smollm2-135m --quiet")
    completer = shared_shell.Completer
    assert completer is not None

    def offer(line: str) -> list[str]:
        with provisionalcompleter():
            found = rectify_completions(line, completer.completions(line, len(line)))
            return [line[: one.start] + one.text + line[one.end :] for one in found]

    return offer


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("%mqlab ser", ["%mqlab serve"]),
        ("%%mqlab pro", ["%%mqlab profile"]),
        ("lab = %mqlab atta", ["lab = %mqlab attach"]),
        ("1 + 1\n%mqlab sto", ["1 + 1\n%mqlab stop"]),
        ("%mqlab serve smol", ["%mqlab serve smollm2-135m"]),
        ("%mqlab serve smollm2-135m --topol", ["%mqlab serve smollm2-135m --topology"]),
        ("%mqlab serve smollm2-135m --topology m", ["%mqlab serve smollm2-135m --topology mq"]),
        ("%mqlab serve smollm2-135m --topology=m", ["%mqlab serve smollm2-135m --topology=mq"]),
        ("%mqlab serve smollm2-135m --det", ["%mqlab serve smollm2-135m --detach"]),
        ("%mqlab serve smollm2-135m --quiet --no-rec", ["%mqlab serve smollm2-135m --quiet --no-record"]),
        ("%mqlab stop la", ["%mqlab stop lab"]),
        ("%mqlab bench lat", ["%mqlab bench latency"]),
        ("%mqlab bench lab --num-w", ["%mqlab bench lab --num-warmups", "%mqlab bench lab --num-workers"]),
        ("%mqlab bench serve --session l", ["%mqlab bench serve --session lab"]),
        ("%mqlab bench throughput --model ", ["%mqlab bench throughput --model smollm2-135m"]),
        ("%mqlab bench lab --dataset-name s", ["%mqlab bench lab --dataset-name sharegpt", "%mqlab bench lab --dataset-name sonnet"]),
        ("%mqlab nonsense", []),
        ("%mqlab serve --quantum", []),
    ],
)
def test_candidates(offer: Offer, line: str, after: list[str]) -> None:
    assert offer(line) == after


def test_commands_and_nothing_of_pythons(offer: Offer) -> None:
    looking = ["metrics", "open", "profile", "ps", "serve", "stop", "trace"]
    commands = ["attach", "bench", "calibrate", "check-topology", "compare", "fetch", *looking]
    assert offer("%mqlab ") == [f"%mqlab {command}" for command in commands]


def test_a_value_that_is_given_makes_room_for_options(offer: Offer) -> None:
    offered = offer("%mqlab serve smollm2-135m ")
    assert "%mqlab serve smollm2-135m --topology" in offered and not any(line.endswith("smollm2-135m") for line in offered)
    assert offer("%mqlab serve --max-num-seqs 4 smol") == ["%mqlab serve --max-num-seqs 4 smollm2-135m"]


def test_engines_by_pid(offer: Offer, shared_shell: InteractiveShell) -> None:
    pid = shared_shell.user_ns["lab"].info.pid
    for command in ("stop", "attach", "profile", "metrics", "trace", "bench"):
        assert f"%mqlab {command} {pid}" in offer(f"%mqlab {command} ")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    """A file and a folder with names that begin alike."""
    (tmp_path / "result.json").touch()
    (tmp_path / "results").mkdir()
    yield tmp_path


@pytest.mark.parametrize("command", ["open", "trace", "trace --save", "bench lab --dataset-path", "profile --folder", "serve"])
def test_paths(offer: Offer, files: Path, command: str) -> None:
    assert offer(f"%mqlab {command} {files}/res") == [f"%mqlab {command} {files}/result.json", f"%mqlab {command} {files}/results/"]
    assert offer(f"%mqlab {command} {files}/nothing/res") == []


def test_other_lines_are_pythons(offer: Offer) -> None:
    # IPython gives jedi some milliseconds, which are not enough for its first question on a machine that is busy.
    until_sync(lambda: "print" in offer("prin"))
    assert "%mqlab" in offer("%mql")
