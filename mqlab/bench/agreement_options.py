"""The settings of ``mqlab bench calibration``; light, for the command line reads them to print its help."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from mqlab.bench.compare_options import Lengths
from mqlab.config import check, check_types, option

_QUICK_ROUNDS = 3


@dataclass(frozen=True)
class Workload:
    """Requests of one kind, all at once, or as they arrive.

    Attributes:
        lengths: one for all (fixed), or spread around the means as in a data set.
        rate: requests a second, Poisson; 0 hands over all of them at once.
    """

    name: str
    num_prompts: int
    input_len: int
    output_len: int
    lengths: Lengths = "fixed"
    rate: float = 0.0

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


WORKLOADS = (
    Workload("1 request of 64/48", 1, 64, 48),
    Workload("8 requests of 64/32", 8, 64, 32),
    Workload("8 requests of 256/32", 8, 256, 32),
    Workload("32 requests of 64/32", 32, 64, 32),
    Workload("16 requests of about 128/32, 4 a second", 16, 128, 32, "sharegpt", 4.0),
)
"""Lengths are tokens of prompt and answer."""


@dataclass(frozen=True, kw_only=True)
class AgreementConfig:
    """Real engine and simulated device, given the same requests in turns."""

    device: str = option("here", "the simulated device, as `mqlab calibrate` named or wrote it")
    topology: str = option("v1", "layout of both")
    preset: str = option("best", "of the layout: best, or historical as the system that it reproduces had it")
    rounds: int = option(5, "runs of each workload on either, in turns")
    scale: float = option(1.0, "times as many tokens in every answer; below 1 for a quick look")
    quick: bool = option(False, f"{_QUICK_ROUNDS} rounds at most")
    confidence: float = option(0.95, "of the intervals")
    output_json: str | None = option(None, "write the result to this file", metavar="FILE")

    def __post_init__(self) -> None:
        check_types(self)
        check(bool(self.device), self, "device", "must not be empty")
        check(self.rounds >= 3, self, "rounds", "must be at least 3: fewer runs have no interval")
        check(self.scale > 0, self, "scale", "must be above 0")
        check(0.5 <= self.confidence < 1, self, "confidence", "must be in [0.5, 1)")

    @property
    def taken_rounds(self) -> int:
        """Rounds that are run."""
        return min(self.rounds, _QUICK_ROUNDS) if self.quick else self.rounds

    def as_record(self) -> dict[str, Any]:
        """What belongs beside the numbers."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "output_json"}
