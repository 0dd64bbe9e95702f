"""One sampler a process at a time, among all processes of this machine that share the runtime folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mqlab.config import Settings
from mqlab.errors import ProfileError


@contextmanager
def reserved(pids: Iterable[int]) -> Iterator[None]:
    """Hold these processes for sampling.

    Raises:
        ProfileError: one is being sampled already, here or in another process.
    """
    with ExitStack() as held:
        for pid in sorted(set(pids)):
            held.enter_context(_reserved(pid))
        yield


@contextmanager
def _reserved(pid: int) -> Iterator[None]:
    path = Settings.read().runtime_dir / f"mqlab-sampled-{pid}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:  # no such folder, or left by another user: py-spy works all the same
        yield
        return
    try:
        _lock(descriptor, path, pid)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, pid: int) -> None:
    """The lock goes with the descriptor, so no crash leaves a process reserved; whose file was just removed lost the race."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino
    except BlockingIOError:
        mine = False
    if not mine:
        raise ProfileError(f"process {pid} is being sampled already: wait until that capture ends")
