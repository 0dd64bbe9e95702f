"""What ``mqlab check-topology`` can be asked; light, for the command line reads it to print its help."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from mqlab.config import check, check_types, option

_MOST_WORKERS = 4


@dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """The contract of a topology, check by check."""

    topology: str = option("", "a .py file that holds a layout, or the name of one that comes with mqlab")
    only: str | None = option(
        None, "only checks with one of these words in their theme or name: 'abort close'", metavar="WORDS", aliases=("-k",)
    )
    full: bool = option(False, "also the checks that take long")
    codec: Literal["msgpack", "pickle"] = option("msgpack", "how a message becomes bytes", choices=("msgpack", "pickle"))
    deadline: float = option(60.0, "seconds that one check may take")
    workers: int = option(0, f"checks at once, each in a process of its own; 0 takes one per processor, {_MOST_WORKERS} at most")

    def __post_init__(self) -> None:
        check_types(self)
        check(bool(self.topology), self, "topology", "must not be empty")
        check(self.deadline > 0, self, "deadline", "must be above 0")
        check(self.workers >= 0, self, "workers", "must be at least 0")

    @property
    def processes(self) -> int:
        """How many checks run at once."""
        return self.workers or min(_MOST_WORKERS, os.cpu_count() or 1)
