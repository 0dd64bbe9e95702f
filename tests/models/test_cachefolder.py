"""A cached folder is built once, appears whole, and survives a killed build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from mqlab.errors import ModelError
from mqlab.models.cachefolder import build_once


def test_whoever_comes_during_a_build_waits_for_it(tmp_path: Path) -> None:
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        if len(built) == 1:
            second.start()
            second.join(0.5)
        (folder / "file").write_text("whole")

    second = Thread(target=build_once, args=(tmp_path / "models" / "a", build))
    target = build_once(tmp_path / "models" / "a", build)
    second.join(30)
    assert len(built) == 1
    assert (target / "file").read_text() == "whole"
    assert build_once(target, build) == target
    assert len(built) == 1


def test_a_failed_build_leaves_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ModelError("no network")

    with pytest.raises(ModelError, match="no network"):
        build_once(tmp_path / "a", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".a.lock"]
    build_once(tmp_path / "a", lambda folder: (folder / "file").touch())
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]


KILLED = """
import os, signal, sys
from pathlib import Path
from mqlab.models.cachefolder import build_once

def build(folder):
    (folder / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)

build_once(Path(sys.argv[1]), build)
"""


def test_a_killed_build_is_cleared_away_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "a"
    subprocess.run([sys.executable, "-c", KILLED, str(target)], timeout=60)
    assert not target.exists()
    assert (tmp_path / ".a.partial" / "half").exists()
    build_once(target, lambda folder: (folder / "file").touch())
    assert [path.name for path in target.iterdir()] == ["file"]
    assert not (tmp_path / ".a.partial").exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"cannot write the model cache at .*file/a.*; free some space or set MQLAB_CACHE"):
        build_once(tmp_path / "file" / "a", lambda folder: None)
