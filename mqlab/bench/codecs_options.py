"""The settings of the codecs' benchmark; light, for the command line reads them to print its help."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from mqlab.config import check, check_types, option


@dataclass(frozen=True, kw_only=True)
class CodecsConfig:
    """Which messages are encoded and decoded, and how often."""

    batch: str = option("1,32,256", "requests of a step, a row of the result each", metavar="N,N,…")
    tokens: int = option(100, "tokens that each request has so far, in the middle of a round")
    steps: int = option(16, "steps of a round; their median counts")
    num_iters_warmup: int = option(1, "rounds that are not counted")
    num_iters: int = option(7, "rounds that are counted; each takes every row once")
    output_json: str | None = option(None, "write the result to this file", metavar="FILE")

    def __post_init__(self) -> None:
        check_types(self)
        check(
            all(part.strip().isdecimal() for part in self.batch.split(",")), self, "batch", "must be whole numbers with commas between them"
        )
        check(min(self.batches) >= 1, self, "batch", "must hold numbers of at least 1")
        check(self.steps >= 1, self, "steps", "must be at least 1")
        check(self.tokens > self.steps // 2 + 1, self, "tokens", "must be more than half of --steps and one: a round begins so many before")
        check(self.num_iters >= 1, self, "num_iters", "must be at least 1")
        check(self.num_iters_warmup >= 0, self, "num_iters_warmup", "must be at least 0")

    @property
    def batches(self) -> tuple[int, ...]:
        """Requests of a step, each number once."""
        return tuple(dict.fromkeys(int(part) for part in self.batch.split(",")))

    def as_record(self) -> dict[str, Any]:
        """What belongs beside the numbers."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "output_json"}
