"""The private folder of one engine: its sockets, its page, its log. Nobody else may enter it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from mqlab.config import Settings
from mqlab.errors import ConfigError

_PREFIX = "mqlab-"
_MAX_IPC_PATH = 107  # sizeof(sockaddr_un.sun_path) - 1


class RunDir:
    """A folder of mode 0700 that carries its owner's pid and lock, so that one left behind by a killed owner can be told and swept.

    Args:
        within: where to make it; by default the runtime folder of the settings.
    """

    def __init__(self, within: Path | None = None) -> None:
        root = within or Settings.read().runtime_dir
        if not root.is_dir():
            raise ConfigError(f"MQLAB_RUNTIME={str(root)!r} is not a folder; make it, or unset the variable to use /tmp")
        sweep(root)
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=root))
        self._owned: int | None = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._owned, fcntl.LOCK_EX)

    def ipc(self, name: str) -> str:
        """A ZeroMQ address inside the folder.

        Raises:
            ConfigError: the path is too long for a unix socket.
        """
        path = str(self.path / name)
        if len(path) > _MAX_IPC_PATH:
            raise ConfigError(
                f"socket path {path!r} has {len(path)} bytes, the limit is {_MAX_IPC_PATH}: set MQLAB_RUNTIME to a shorter folder"
            )
        return f"ipc://{path}"

    def remove(self) -> None:
        """Delete the folder; idempotent."""
        if self._owned is not None:
            os.close(self._owned)
            self._owned = None
        remove_tree(self.path)


@dataclass(frozen=True)
class IpcPaths:
    """Base of a layout's addresses: each field is where the socket of that name is."""

    @classmethod
    def within(cls, run_dir: RunDir) -> Self:
        """All of them in a private folder."""
        return cls(**{one.name: run_dir.ipc(one.name) for one in fields(cls)})


def remove_tree(path: Path) -> None:
    """Delete a run folder and all in it; a missing one is fine."""
    shutil.rmtree(path, ignore_errors=True)


def sweep(root: Path) -> None:
    """Remove folders whose owner died before it could."""
    if not Path("/proc").is_dir():
        return
    for path in root.glob(f"{_PREFIX}*-*"):
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(FileNotFoundError):  # another process sweeps too
            if pid.isdigit() and not Path("/proc", pid).exists() and path.stat().st_uid == os.getuid() and not _is_locked(path):
                remove_tree(path)


def _is_locked(path: Path) -> bool:
    """Whether its owner lives, in another PID namespace that shares the folder."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
