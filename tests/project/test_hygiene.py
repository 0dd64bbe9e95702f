"""The leak check of conftest sees what it is for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from leftovers import snapshot

from mqlab.contract.waiting import until_sync

WAIT_FOR_EOF = "import sys; sys.stdin.read()"
ORPHANING = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {WAIT_FOR_EOF!r}], stdout=subprocess.DEVNULL).pid)"


def child(runtime: Path, cleanup: ExitStack) -> str:
    process = subprocess.Popen([sys.executable, "-c", WAIT_FOR_EOF], stdin=subprocess.PIPE)
    cleanup.callback(process.communicate)
    return f"process {process.pid}"


def orphan(runtime: Path, cleanup: ExitStack) -> str:
    """A process whose parent is gone; it lives until our end of the pipe closes."""
    read, write = os.pipe()
    cleanup.callback(os.close, write)
    with os.fdopen(read) as stdin:
        pid = subprocess.run([sys.executable, "-c", ORPHANING], stdin=stdin, stdout=subprocess.PIPE, check=True).stdout.decode().strip()
    return f"process {pid}"


def thread(runtime: Path, cleanup: ExitStack) -> str:
    stop = threading.Event()
    waiting = threading.Thread(target=stop.wait, name="forgotten", daemon=True)
    waiting.start()
    cleanup.callback(waiting.join)
    cleanup.callback(stop.set)
    return "thread forgotten"


def file(runtime: Path, cleanup: ExitStack) -> str:
    path = runtime / "socket"
    path.touch()
    cleanup.callback(path.unlink)
    return f"file {path}"


def shared_memory(runtime: Path, cleanup: ExitStack) -> str:
    path = Path(f"/dev/shm/mqlab-hygiene-{os.getpid()}")
    path.touch()
    cleanup.callback(path.unlink)
    return f"file {path}"


@pytest.fixture
def cleanup() -> AbstractContextManager[ExitStack]:
    return ExitStack()


@pytest.mark.parametrize("leave", [child, orphan, thread, file, shared_memory], ids=lambda leave: leave.__name__)
def test_sees_what_is_left(leave: Callable[[Path, ExitStack], str], runtime_dir: Path, cleanup: ExitStack) -> None:
    before = snapshot(runtime_dir)
    with cleanup:
        expected = leave(runtime_dir, cleanup)
        left = snapshot(runtime_dir).new_since(before)
    assert len(left) == 1 and left[0].startswith(expected)
    until_sync(lambda: not snapshot(runtime_dir).new_since(before))


def test_runtime_folder_leaves_room_for_socket_names(runtime_dir: Path) -> None:
    assert len(str(runtime_dir)) < 30
