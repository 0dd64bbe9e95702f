"""Run folders: private, swept only when their owner is dead, short enough for sockets."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mqlab.errors import ConfigError
from mqlab.wire.rundir import RunDir, remove_tree


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime folder of this test's own."""
    monkeypatch.setenv("MQLAB_RUNTIME", str(tmp_path))
    return tmp_path


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_it_is_private_and_named_by_its_owner() -> None:
    run_dir = RunDir()
    assert stat.S_IMODE(run_dir.path.stat().st_mode) == 0o700
    assert run_dir.path.name.startswith(f"mqlab-{os.getpid()}-")
    (run_dir.path / "file").touch()
    run_dir.remove()
    assert not run_dir.path.exists()
    run_dir.remove()


def test_folders_do_not_collide() -> None:
    assert RunDir().path != RunDir().path


def test_only_what_a_dead_owner_left_is_swept(root: Path) -> None:
    dead = root / f"mqlab-{dead_pid()}-abc"
    kept = [root / name for name in (f"mqlab-{os.getpid()}-abc", "mqlab-engine-x.pstats", "mqlab-1-init", "other-99999999-x")]
    for path in [dead, *kept]:
        path.mkdir()
        (path / "socket").touch()
    RunDir()
    assert not dead.exists()
    assert all((path / "socket").exists() for path in kept)


def test_a_link_is_not_followed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    victim = tmp_path_factory.mktemp("victim")
    (victim / "precious").touch()
    (root / f"mqlab-{dead_pid()}-link").symlink_to(victim)
    RunDir()
    assert (victim / "precious").exists()


def test_a_link_to_nowhere_is_no_obstacle(root: Path) -> None:
    (root / f"mqlab-{dead_pid()}-link").symlink_to(root / "nowhere")
    RunDir()


def test_many_may_sweep_at_once(root: Path) -> None:
    pid = dead_pid()
    for i in range(300):
        (root / f"mqlab-{pid}-{i}").mkdir()
    with ThreadPoolExecutor(8) as pool:
        made = [future.result() for future in [pool.submit(RunDir) for _ in range(16)]]
    assert sorted(root.iterdir()) == sorted(run_dir.path for run_dir in made)


def test_an_address_is_an_ipc_path_inside() -> None:
    run_dir = RunDir()
    assert run_dir.ipc("input") == f"ipc://{run_dir.path}/input"


@pytest.mark.parametrize("name", ["x" * 60, "ü" * 30])
def test_a_path_too_long_names_size_limit_and_remedy(root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    long = root / name
    long.mkdir()
    monkeypatch.setenv("MQLAB_RUNTIME", str(long))
    run_dir = RunDir()
    fill = 107 - len(os.fsencode(run_dir.path)) - 1
    if fill > 0:
        assert run_dir.ipc("s" * fill)
    with pytest.raises(ConfigError, match=r"has \d+ bytes, the limit is 107: set MQLAB_RUNTIME"):
        run_dir.ipc("s" * (max(fill, 0) + 1))


def test_a_runtime_folder_that_is_missing_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQLAB_RUNTIME", str(root / "missing"))
    with pytest.raises(ConfigError, match=r"missing.*MQLAB_RUNTIME|MQLAB_RUNTIME.*missing"):
        RunDir()


def test_remove_tree_of_nothing_is_fine(root: Path) -> None:
    remove_tree(root / "nothing")
