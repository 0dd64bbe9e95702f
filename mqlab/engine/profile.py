"""A profiler inside a running core: start, stop, a file. It needs no right to attach, unlike a sampler from outside."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Protocol

from mqlab.config import Settings
from mqlab.errors import CallError
from mqlab.wire.spec import Spec


class Capturing(Protocol):
    """A capture that runs from construction until ``stop`` or ``drop``, in the thread that made it."""

    def stepped(self) -> None:
        """The core finished a step."""
        ...

    def stop(self, path: Path) -> None:
        """End it and write the file; raises OSError where that fails."""
        ...

    def drop(self) -> None:
        """End it and forget it."""
        ...


class PythonProfile:
    """cProfile: every Python call of the core's thread; several times slower while it runs.

    Raises:
        CallError: another profiler holds the interpreter.
    """

    def __init__(self) -> None:
        from cProfile import Profile  # an engine that is not profiled starts without it

        self._profile = Profile()
        try:
            self._profile.enable()
        except ValueError as error:
            raise CallError(f"cProfile cannot start: {error}; end the other profiler first") from error

    def stepped(self) -> None:
        """Steps are not told apart."""

    def stop(self, path: Path) -> None:
        """See Capturing."""
        self._profile.disable()
        self._profile.dump_stats(path)

    def drop(self) -> None:
        """See Capturing."""
        self._profile.disable()


# By name: the torch profiler stands above this layer, and a core without torch must not import it.
KINDS = {
    "cprofile": (Spec("mqlab.engine.profile:PythonProfile"), ".pstats"),
    "torch": (Spec("mqlab.probes.torchprof:TorchProfile"), ".trace.json"),
}


class Profiler:
    """Two states, idle and capturing. It sees the thread that starts it, which must also stop it: the core's own."""

    def __init__(self) -> None:
        self._capture: Capturing | None = None
        self._path = Path()

    def start(self, path: str | None = None, kind: str = "cprofile") -> str:
        """Capture from now on; returns the file that ``stop`` will write, by default a new one in the runtime folder.

        Args:
            path: the file; its folder must exist.
            kind: "cprofile" for Python functions (a .pstats file), "torch" for operators (a Chrome trace, for ui.perfetto.dev).

        Raises:
            CallError: a capture runs already, the kind is unknown, the file cannot be written, or the profiler cannot start.
        """
        if self._capture is not None:
            raise CallError(f"a profile is being taken already, into {self._path}; stop_profile first")
        if kind not in KINDS:
            raise CallError(f"unknown kind of profile {kind!r}; known: {', '.join(KINDS)}")
        spec, suffix = KINDS[kind]
        target = _writable(Path(path)) if path else _new_file(suffix)
        try:
            self._capture = spec.build()
        except Exception:
            if not path:
                target.unlink(missing_ok=True)
            raise
        self._path = target
        return str(target)

    def stepped(self) -> None:
        """The core finished a step."""
        if self._capture is not None:
            self._capture.stepped()

    def stop(self) -> str:
        """End the capture; returns its file.

        Raises:
            CallError: no capture runs, or the file could not be written (the capture is over all the same).
        """
        capture, self._capture = self._capture, None
        if capture is None:
            raise CallError("no profile is being taken; start_profile first")
        try:
            capture.stop(self._path)
        except OSError as error:
            raise CallError(f"the profile could not be written: {error}; start_profile with another path") from error
        return str(self._path)

    def close(self) -> None:
        """Drop a capture that still runs."""
        if self._capture is not None:
            self._capture.drop()
            self._capture = None


def _new_file(suffix: str) -> Path:
    handle, name = tempfile.mkstemp(prefix="mqlab-engine-", suffix=suffix, dir=Settings.read().runtime_dir)
    os.close(handle)
    return Path(name)


def _writable(path: Path) -> Path:
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise CallError(f"cannot write a profile to {path}: give a file name in a folder that exists and is writable")
    return path.absolute()
