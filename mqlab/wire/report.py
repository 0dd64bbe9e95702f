"""What a child tells its parent outside of any topology: JSON lines on a pipe. It works before the sockets do, and after."""

from __future__ import annotations

import contextlib
import os
from typing import Literal

import msgspec

from mqlab.errors import ConfigError, ModelError, RefusalKind, refusal_kind


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """``ready``: its sockets are up. ``failed``: it is about to exit, and why; where nothing is broken ``refusal`` says which kind of
    refusal it is."""

    kind: Literal["ready", "failed"]
    cause: str = ""
    traceback: str = ""
    refusal: RefusalKind | None = None


class Reporter:
    """The child's end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def ready(self) -> None:
        """The sockets are up."""
        self._write(Report("ready"))

    def failed(self, cause: str, traceback: str) -> None:
        """The process is about to exit."""
        self._write(Report("failed", cause, traceback))

    def refused(self, error: ConfigError | ModelError, traceback: str) -> None:
        """The process is about to exit, for what its user asked for is not possible."""
        self._write(Report("failed", str(error), traceback, refusal_kind(error)))

    def _write(self, report: Report) -> None:
        with contextlib.suppress(BrokenPipeError):  # a parent that is gone needs no report
            os.write(self._fd, msgspec.json.encode(report) + b"\n")


class ReportReader:
    """The parent's end, read without blocking."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)
        self._rest = b""

    def read(self) -> list[Report]:
        """All reports that have arrived whole."""
        try:
            while data := os.read(self.fd, 65536):
                self._rest += data
        except BlockingIOError:
            pass
        *lines, self._rest = self._rest.split(b"\n")
        return [msgspec.json.decode(line, type=Report) for line in lines]
