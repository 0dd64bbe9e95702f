"""What a run is told with: true where it can be known, absent where not, and never an error."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from mqlab.record import metadata
from mqlab.record.metadata import environment, read_meta, write_meta


@pytest.fixture(autouse=True)
def asked_anew() -> None:
    """What was found out about the machine is kept for the life of a process."""
    metadata._machine.cache_clear()


def test_environment_is_true_and_fit_for_json() -> None:
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert found["host"] == socket.gethostname() and found["cores"] == os.cpu_count()
    assert found["python"] == platform.python_version()
    assert found["versions"]["torch"] == version("torch") and found["versions"]["mqlab"] == version("mqlab")
    assert abs((datetime.now(UTC) - datetime.fromisoformat(found["date"])).total_seconds()) < 60
    if Path("/proc/sys/kernel/random/boot_id").exists():
        assert found["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_the_commit_is_the_checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        return subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "--quiet", "-m", "x")
    monkeypatch.setattr(metadata, "_ROOT", tmp_path)
    assert (environment()["commit"], environment()["dirty"]) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "a").write_text("2")
    assert environment()["dirty"]
    inside = tmp_path / "site-packages"
    inside.mkdir()
    monkeypatch.setattr(metadata, "_ROOT", inside)
    assert "commit" not in environment(), "installed inside somebody's checkout is not a checkout of mqlab"


def test_programs_that_are_missing_fail_or_hang_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "gpus" not in environment() and "commit" not in environment()
    for script in ("exit 3", "exec /bin/sleep 60"):
        metadata._machine.cache_clear()
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho broken\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setattr(metadata, "_BOUND_S", 0.2)
        assert "gpus" not in environment()


def test_gpus_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA A'\necho 'NVIDIA B'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment()["gpus"] == ["NVIDIA A", "NVIDIA B"]


def test_meta_is_written_whole_and_read_back(tmp_path: Path) -> None:
    write_meta(tmp_path, config={"path": Path("x")}, seed=7)
    meta, notes = read_meta(tmp_path)
    assert (meta["seed"], meta["config"], meta["host"], notes) == (7, {"path": "x"}, socket.gethostname(), [])
    assert [path.name for path in tmp_path.iterdir()] == ["meta.json"]


@pytest.mark.parametrize(("content", "note"), [(None, "has no meta.json"), ("{", "cannot be read"), ("[]", "holds no object")])
def test_meta_that_is_not_there_is_noted(tmp_path: Path, content: str | None, note: str) -> None:
    if content is not None:
        (tmp_path / "meta.json").write_text(content)
    meta, (found,) = read_meta(tmp_path)
    assert meta == {} and note in found
