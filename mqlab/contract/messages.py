"""What crosses between ``mqlab check-topology`` and the processes that run its checks: JSON lines."""

from __future__ import annotations

from typing import Literal

import msgspec

from mqlab.contract.options import CheckConfig


class Task(msgspec.Struct, frozen=True):
    """What a process is for: the first line that it gets. Every later line is the name of a check to run.

    Attributes:
        path: its ``sys.path``.
        folder: its own, for what the checks run; it removes it where nobody else is left to do so.
    """

    path: list[str]
    folder: str
    config: CheckConfig


class Case(msgspec.Struct, frozen=True):
    """One check of the contract.

    Attributes:
        demand: what it holds a layout to, in words.
        where: file and line of its code.
        skipped: why it is not run; empty where it is.
    """

    theme: str
    name: str
    demand: str
    where: str
    skipped: Literal["", "does not apply", "left out"] = ""


class Plan(msgspec.Struct, frozen=True, tag=True):
    """The first answer: all checks that were asked for, or why there are none."""

    cases: list[Case] = []
    error: str = ""


class Line(msgspec.Struct, frozen=True):
    """A line of code that a failure went through."""

    file: str
    number: int
    code: str


class Outcome(msgspec.Struct, frozen=True, tag=True):
    """How a check went.

    Attributes:
        error: what was wrong, with the values that were compared; empty where it passed.
        trail: how it came there: lines of the check and of the layout, the innermost last.
        printed: what the process wrote meanwhile, its end.
    """

    name: str
    seconds: float
    error: str = ""
    trail: list[Line] = []
    printed: str = ""

    @property
    def passed(self) -> bool:
        """Whether the layout does what the check demands."""
        return not self.error
