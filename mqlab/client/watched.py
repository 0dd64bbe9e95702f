"""A child of a client, watched: what it reports, whether it is ready, whether it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mqlab.errors import ConfigError, ModelError, refusal_of
from mqlab.wire.liveness import ExitWatch
from mqlab.wire.process import Child
from mqlab.wire.report import Report
from mqlab.wire.statspage import StatsPage


class Watched:
    """One process that a layout has launched. Make, use and close on the loop's thread.

    Args:
        child: it, just launched.
        on_exit: called with this when it has ended, its last reports read.
        page: what its loop stamps, if anybody looks at it from here; closed with this.

    Attributes:
        ready: set once it has said that it is.
        ended: done once it is gone.
    """

    def __init__(self, child: Child, on_exit: Callable[[Watched], None], page: StatsPage | None = None) -> None:
        self.child = child
        self.page = page
        self._loop = asyncio.get_running_loop()
        self._on_exit = on_exit
        self._reports: list[Report] = []
        self.ready = asyncio.Event()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._released = False
        self._watch = ExitWatch(child, self._exited)
        self._loop.add_reader(child.reports.fd, self._read)

    @property
    def role(self) -> str:
        """What the process is for."""
        return self.child.role

    @property
    def failure(self) -> Report | None:
        """Why it said that it ends."""
        return next((report for report in self._reports if report.kind == "failed"), None)

    @property
    def refusal(self) -> ConfigError | ModelError | None:
        """What it does not start for, as it raised it."""
        if self.failure is None or self.failure.refusal is None:
            return None
        return refusal_of(self.failure.refusal, self.failure.cause)

    @property
    def cause(self) -> str:
        """How it ended: in its own words, or else in the kernel's."""
        return self.failure.cause if self.failure else self.child.describe_exit()

    @property
    def traceback(self) -> str:
        """Its own; empty where it said nothing."""
        return self.failure.traceback if self.failure else ""

    def release(self) -> None:
        """Stop watching, kill it if it still runs, collect its exit status. Also once the loop has stopped. Idempotent."""
        if self._released:  # the pipe's number may be another's by now, whose reader would go
            return
        self._released = True
        self._watch.close()
        if not self._loop.is_closed():
            self._loop.remove_reader(self.child.reports.fd)
        self.child.reap()
        if self.page is not None:
            self.page.close()

    def _read(self) -> None:
        self._reports += self.child.reports.read()
        if any(report.kind == "ready" for report in self._reports):
            self.ready.set()

    def _exited(self) -> None:
        self._read()
        self._loop.remove_reader(self.child.reports.fd)
        self.ended.set_result(None)
        self._on_exit(self)
