"""The settings of the scheduler's benchmark; light, for the command line reads them to print its help."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from mqlab.config import check, check_types, option

PROMPT = 32
"""Tokens of a prompt, give or take half a block."""


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """How many requests a core has while its steps are timed."""

    running: str = option("1,16,64,256,1024", "requests that run, a row of the result each", metavar="N,N,…")
    waiting: str = option("0,10000", "requests that wait behind them, likewise", metavar="N,N,…")
    steps: int = option(64, "steps of a round; each counts by itself")
    num_iters_warmup: int = option(1, "rounds that are not counted")
    num_iters: int = option(5, "rounds that are counted; each takes every row once")
    output_json: str | None = option(None, "write the result to this file", metavar="FILE")

    def __post_init__(self) -> None:
        check_types(self)
        check(all(count >= 1 for count in self._counts("running")), self, "running", "must hold numbers of at least 1")
        check(all(count >= 0 for count in self._counts("waiting")), self, "waiting", "must hold numbers of at least 0")
        for name in ("steps", "num_iters"):
            check(getattr(self, name) >= 1, self, name, "must be at least 1")
        check(self.num_iters_warmup >= 0, self, "num_iters_warmup", "must be at least 0")

    def _counts(self, name: str) -> tuple[int, ...]:
        parts = getattr(self, name).split(",")
        check(all(part.strip().isdecimal() for part in parts), self, name, "must be whole numbers with commas between them")
        return tuple(dict.fromkeys(int(part) for part in parts))

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(running, waiting) of each row."""
        return tuple((running, waiting) for running in self._counts("running") for waiting in self._counts("waiting"))

    @property
    def tokens(self) -> int:
        """Tokens that a request comes to, prompt and all rounds together, at most."""
        return 2 * PROMPT + self.steps * (self.num_iters_warmup + self.num_iters)

    def as_record(self) -> dict[str, Any]:
        """What belongs beside the numbers."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "output_json"}
