"""cProfile around a running core: start, stop, a .pstats file."""

from __future__ import annotations

import os
import tempfile
from cProfile import Profile
from pathlib import Path

from mqlab.config import Settings
from mqlab.errors import CallError


class Profiler:
    """Two states, idle and capturing. It sees the thread that starts it, which must also stop it: the core's own."""

    def __init__(self) -> None:
        self._profile: Profile | None = None
        self._path = Path()

    def start(self, path: str | None = None) -> str:
        """Capture from now on; returns the file that ``stop`` will write, by default a new one in the runtime folder.

        Raises:
            CallError: a capture runs already, the file cannot be written, or another profiler holds the interpreter.
        """
        if self._profile is not None:
            raise CallError(f"a profile is being taken already, into {self._path}; stop_profile first")
        target = _writable(Path(path)) if path else _new_file()
        profile = Profile()
        try:
            profile.enable()
        except ValueError as error:
            raise CallError(f"cProfile cannot start: {error}; end the other profiler first") from error
        self._profile, self._path = profile, target
        return str(target)

    def stop(self) -> str:
        """End the capture; returns the .pstats file.

        Raises:
            CallError: no capture runs, or the file could not be written (the capture is over all the same).
        """
        profile, self._profile = self._profile, None
        if profile is None:
            raise CallError("no profile is being taken; start_profile first")
        profile.disable()
        try:
            profile.dump_stats(self._path)
        except OSError as error:
            raise CallError(f"the profile could not be written: {error}; start_profile with another path") from error
        return str(self._path)

    def close(self) -> None:
        """Drop a capture that still runs."""
        if self._profile is not None:
            self._profile.disable()
            self._profile = None


def _new_file() -> Path:
    handle, name = tempfile.mkstemp(prefix="mqlab-engine-", suffix=".pstats", dir=Settings.read().runtime_dir)
    os.close(handle)
    return Path(name)


def _writable(path: Path) -> Path:
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise CallError(f"cannot write a profile to {path}: give a file name in a folder that exists and is writable")
    return path.absolute()
