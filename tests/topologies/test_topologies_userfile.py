"""Layouts in files of the user's own: found, read anew when they change, and refused in words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqlab.arguments import build_parser, compare_configs
from mqlab.bench.arms import make_arms
from mqlab.contract.cases import rig_of
from mqlab.contract.rig import assert_serves
from mqlab.errors import ConfigError
from mqlab.topologies import find_layout, layout_options, make_client
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

ECHO = Wiring(Spec("mqlab.engine.echo:build"))
PLAIN = """
from mqlab.topologies.inproc import InprocClient

class Mine(InprocClient):
    word = "first"
"""
WITH_OPTIONS = """
from dataclasses import dataclass
from mqlab.topologies.inproc import InprocClient

@dataclass(frozen=True)
class Options:
    size: int = 1

PRESETS = {"best": Options(2)}

class Mine(InprocClient):
    def __init__(self, wiring, options):
        super().__init__(wiring)
        self.size = options.size
"""
Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file; what importing it does to this process is undone."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return name

    yield write
    for path in tmp_path.rglob("layout_*.py"):
        sys.modules.pop(path.stem, None)


async def test_a_file_is_a_topology(write: Write, tmp_path: Path) -> None:
    path = write("layout_plain.py", PLAIN)
    for name in (path, f"./{path}", str(tmp_path / path)):
        async with make_client(name, ECHO) as client:
            await assert_serves(client)
    assert str(tmp_path) == sys.path[-1], "its folder goes last: nothing in it hides another module"
    with pytest.raises(ConfigError, match=r"'layout_plain.py' does not take these options: \['size'\]; it has \[\]"):
        make_client(path, ECHO, size=3)


async def test_options_and_presets_are_the_files_own(write: Write) -> None:
    path = write("layout_options.py", WITH_OPTIONS)
    sizes = {preset: layout_options(path, preset).size for preset in ("historical", "best")}
    assert sizes == {"historical": 1, "best": 2}
    client = make_client(path, ECHO, size=3)
    assert client.size == 3  # type: ignore[attr-defined]
    await client.close()
    with pytest.raises(ConfigError, match="--size='big' is not valid"):
        layout_options(path, size="big")


def test_a_file_is_read_anew_when_its_text_has_changed(write: Write) -> None:
    path = write("layout_edited.py", PLAIN)
    before = find_layout(path)
    assert find_layout(path).client is before.client, "the same text is the same class"
    # As long as before, and within the same second: Python itself would not notice.
    Path(path).write_text(PLAIN.replace("first", "other"))
    assert (before.client.word, find_layout(path).client.word) == ("first", "other")


def test_arms_are_labelled_by_the_files_name(write: Write) -> None:
    path = write("layout_arm.py", WITH_OPTIONS)
    words = ["compare", "echo", "--topologies", f"v1,./{path}"]
    engine, config, timing = compare_configs(build_parser().parse(words))
    assert [arm.label for arm in make_arms(engine, config, timing)] == ["v1", "layout_arm"]
    varied = ["compare", "echo", "--topology", path, "--vary", "size=1,2"]
    engine, config, timing = compare_configs(build_parser().parse(varied))
    assert [arm.options for arm in make_arms(engine, config, timing)] == [{"size": 1}, {"size": 2}]


def test_a_module_may_tell_what_its_rig_is(write: Write) -> None:
    path = write("layout_rig.py", PLAIN + 'RIG = {"sees_hangs": False}')
    rig = rig_of(path)
    assert (rig.own_process, rig.sees_hangs, rig.steps_apart) == (False, False, True)
    wrong = write("layout_norig.py", PLAIN + 'RIG = {"own_process": True}')
    with pytest.raises(ConfigError, match=r"has \['own_process'\]; it may have .*sees_hangs, steps_apart"):
        rig_of(wrong)


REMOTE = """
from mqlab.client.remote import RemoteClient
from mqlab.types import Shape

class Mine(RemoteClient):
    shape = Shape("mine", processes=())
    def _entry(self, run_dir): ...
    def _open_before(self, sockets, run_dir): ...
    async def _handshake(self, sockets, run_dir): ...
    async def _send(self, command): ...
    def _post(self, command): ...
    def _receivers(self): ...
"""


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("json.py", PLAIN, "the name 'json' is taken by .*json/__init__.py; rename the file"),
        ("sys.py", PLAIN, "the name 'sys' is taken by built-in"),
        ("numpy.py", PLAIN, "the name 'numpy' is taken by .*numpy/__init__.py"),
        ("my-layout.py", PLAIN, "'my-layout' is not a name that a module can have; rename the file"),
        ("layout_syntax.py", "class Mine(:\n", r"layout_syntax.py, line 1: invalid syntax"),
        ("layout_error.py", PLAIN + "\nmissing\n", r"layout_error.py, line 7: NameError: name 'missing' is not defined"),
        ("layout_exit.py", "raise SystemExit(3)", r"layout_exit.py, line 1: SystemExit: 3"),
        ("layout_import.py", "import no_such_module_here", r"line 1: ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("layout_empty.py", "from mqlab.topologies.mq import MqClient", "must define one subclass of RemoteClient.*; it defines none"),
        ("layout_two.py", PLAIN + "class Other(InprocClient):\n    ...\n", "it defines Mine, Other; docs/adding-a-topology.md shows how"),
        ("layout_half.py", REMOTE.replace("_post", "post"), "Mine of .*layout_half.py lacks _post"),
        ("layout_shape.py", REMOTE.replace("shape =", "picture ="), "lacks `shape`"),
        (
            "layout_init.py",
            REMOTE + "    def __init__(self, wiring): ...\n",
            r"\(wiring, log_to_terminal=…\), which its __init__ does not",
        ),
        ("layout_needy.py", WITH_OPTIONS.replace("int = 1", "int"), "Options.* of .* fails: .*size.*; give each field a default"),
        ("layout_odd.py", PLAIN + "Options = dict\n", "Options of .* must be a dataclass"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(name: str, text: str, told: str, write: Write) -> None:
    path = write(name, text)
    before = list(sys.path)
    with pytest.raises(ConfigError, match=told):
        find_layout(path)
    assert "taken" not in told or sys.path == before


def test_a_file_that_is_not_there(write: Write, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no file {tmp_path}/nowhere.py"):
        make_client("nowhere.py", ECHO)
    with pytest.raises(ConfigError, match=r"'nowhere' is unknown; choose one of inproc, .*, or a \.py file of your own"):
        make_client("nowhere", ECHO)
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        make_client("folder.py", ECHO)


def test_two_files_of_one_name_are_told_apart(write: Write, tmp_path: Path) -> None:
    first = write("layout_same.py", PLAIN)
    find_layout(first)
    (tmp_path / "deeper").mkdir()
    second = tmp_path / "deeper" / first
    second.write_text(PLAIN)
    with pytest.raises(ConfigError, match=f"the name 'layout_same' is taken by {tmp_path}/layout_same.py"):
        find_layout(str(second))
    Path(first).unlink()
    assert find_layout(str(second)).module.__file__ == str(second), "a file that was moved is found where it is now"
