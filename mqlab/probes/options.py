"""The settings of a capture; light, for the command line reads them to print its help."""

from __future__ import annotations

from dataclasses import dataclass

from mqlab.config import check, check_types, option


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """The capture: stacks of engine and front, sampled by py-spy."""

    seconds: int = option(5, "how long, in whole seconds")
    rate: int = option(100, "samples a second")
    idle: bool = option(False, "keep threads that wait, too")
    native: bool = option(False, "C and C++ frames as well")
    gil: bool = option(False, "only threads that hold the GIL")
    folder: str | None = option(None, "where stacks, speedscope file and flame graph go; by default a new folder in mqlab's cache")

    def __post_init__(self) -> None:
        check_types(self)
        check(1 <= self.seconds <= 3600, self, "seconds", "must be in [1, 3600]")
        check(1 <= self.rate <= 1000, self, "rate", "must be in [1, 1000]")
