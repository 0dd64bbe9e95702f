"""The settings of the device's benchmark; light, for the command line reads them to print its help."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from mqlab.config import DeviceKind, check, check_types, option

Part = Literal["ceilings", "correctness", "kernels", "sweep", "steps", "engines"]
PARTS: dict[str, str] = {
    "ceilings": "what copies, matrix products and launches reach",
    "correctness": "every kernel held to its reference",
    "kernels": "every kernel's time, over the ceilings",
    "sweep": "other configs of the attention kernels",
    "steps": "decode steps of made-up Llamas, and what of its time the device waits between them",
    "engines": "tokens a second of an engine, through each layout",
}
"""What is measured, in words."""


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """What is measured on the device, and for how long."""

    size: Literal["full", "small"] = option(
        "full",
        "shapes of Llama 1B and 8B, for a GPU; or a few tokens of each, which run anywhere and whose times mean nothing",
        choices=("full", "small"),
    )
    device: DeviceKind = option("auto", "where; auto takes a GPU where there is one", choices=("auto", "cpu", "cuda"))
    max_minutes: float = option(6.0, "of the whole run: what does not fit is listed as skipped, the most wanted comes first")
    parts: str | None = option(None, f"only these, separated by commas: {', '.join(PARTS)}", metavar="A,B")
    rounds: int = option(5, "runs of each engine, in turns")
    seed: int = option(0, "seed of the engines' prompts")
    output_json: str | None = option(None, "write the result to this file", metavar="FILE")

    def __post_init__(self) -> None:
        check_types(self)
        check(self.max_minutes > 0, self, "max_minutes", "must be above 0")
        check(self.rounds >= 1, self, "rounds", "must be at least 1")
        check(self.seed >= 0, self, "seed", "must be at least 0")
        known = ", ".join(PARTS)
        check(all(part in PARTS for part in self.chosen), self, "parts", f"names a part that is not there; there are {known}")

    @property
    def chosen(self) -> tuple[str, ...]:
        """The parts that are measured."""
        return tuple(PARTS) if self.parts is None else tuple(part.strip() for part in self.parts.split(","))

    def as_record(self) -> dict[str, Any]:
        """What belongs beside the numbers."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "output_json"}
