"""Another rank as rank 0 sees it: what it answers, and how it ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from queue import SimpleQueue

from mqlab.errors import MqlabError, RankDied
from mqlab.model.parallel.messages import Answer, Closed, Failed, Hello, Line, Refused
from mqlab.wire.process import Child

_REAP_S = 1.0
"""A process closes its end of a line a moment before it is gone."""

_POLL_S = 0.005


@dataclass(frozen=True)
class Death:
    """How a rank ended.

    Attributes:
        cause: in a sentence.
        details: its own traceback, or the end of its log.
        lost: because of another one that is gone.
        refused: nothing is broken; that is all that its user should be told.
    """

    cause: str
    details: str = ""
    lost: bool = False
    refused: Refused | None = None

    def error(self) -> MqlabError:
        """Made anew for whoever raises it: RankDied, or what the rank refused with."""
        if self.refused is not None:
            return self.refused.error()
        error = RankDied(self.cause)
        if self.details:
            error.add_note(f"What it left behind:\n{self.details.rstrip()}")
        return error


@dataclass(eq=False)
class Peer:
    """One of the other ranks.

    Attributes:
        child: where rank 0 has launched it; None for one that torchrun did, perhaps on another host.
        answers: what it has answered, and its death at last.
    """

    rank: int
    line: Line
    child: Child | None = None
    hello: Hello | None = None
    answers: SimpleQueue[Answer | Death] = field(default_factory=SimpleQueue)

    @property
    def name(self) -> str:
        """As errors name it."""
        if self.child is not None:
            return f"{self.child.role} process {self.child.pid}"
        return f"rank-{self.rank} process" + ("" if self.hello is None else f" {self.hello.pid} on {self.hello.host}")

    def failed(self, failure: Failed) -> Death:
        """It has said that it goes on no more."""
        return Death(f"{self.name} failed: {failure.cause}", failure.traceback, failure.lost, failure.refused)

    def gone(self) -> Death:
        """It has ended without a word."""
        child = self.child
        if child is None:
            return Death(f"{self.name} is gone: its connection was closed")
        deadline = time.monotonic() + _REAP_S
        while child.exit_code() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        report = next((one for one in child.reports.read() if one.kind == "failed"), None)
        if report is not None:
            return Death(f"{self.name} failed: {report.cause}", report.traceback)
        return Death(child.describe_exit(), child.log_tail())

    def end(self, deadline: float) -> None:
        """See one off that was told to leave, until ``deadline`` (s, time.monotonic). A process that rank 0 has launched is killed then;
        one that torchrun did loses its line, and ends by itself."""
        if self.child is None:
            if not self.line.reaches(Closed, deadline):
                self.line.close()
            return
        while self.child.exit_code() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self.child.reap()
        self.line.close()
