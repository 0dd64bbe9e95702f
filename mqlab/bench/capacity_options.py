"""The settings of ``mqlab bench capacity``; light, for the command line reads them to print its help."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from mqlab.config import check, check_types, option


@dataclass(frozen=True, kw_only=True)
class CapacityConfig:
    """Which rates are tried."""

    rates: str = option("1,2,4,8,16,32", "requests/s, as 1,2,4; inf sends all at once", metavar="LIST")
    num_prompts: int = option(200, "requests at each rate")
    burstiness: float = option(1.0, "shape of the gaps between arrivals: 1 Poisson, less burstier, more smoother, inf even", infinite=True)
    output_json: str | None = option(None, "write the result to this file", metavar="FILE")

    def __post_init__(self) -> None:
        check_types(self)
        check(self.num_prompts >= 1, self, "num_prompts", "must be at least 1")
        check(self.burstiness > 0, self, "burstiness", "must be above 0")
        _ = self.numbers

    @property
    def numbers(self) -> tuple[float, ...]:
        """``rates`` as numbers, ascending."""
        try:
            numbers = tuple(sorted({float(item) for item in self.rates.split(",")}))
        except ValueError:
            numbers = (math.nan,)
        check(all(number > 0 for number in numbers), self, "rates", "must be numbers above 0, as 1,2,4")
        return numbers

    def as_record(self) -> dict[str, Any]:
        """What belongs beside the numbers."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "output_json"}
