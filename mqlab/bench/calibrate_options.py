"""The settings of a calibration; light, for the command line reads them to print its help."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from mqlab.config import check, check_types, option
from mqlab.models.devices import MEASURED

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_QUICK_ROUNDS = 3
_QUICK_TOKENS = 2048


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig:
    """What is measured of this machine, and where the device that comes of it goes."""

    name: str = option("here", "the device's name: sim:MODEL@NAME runs on it")
    output: str | None = option(None, "the device's file; NAME.toml in mqlab's cache by default", metavar="FILE")
    rounds: int = option(7, "rounds that are counted; each takes every step once")
    context_tokens: int = option(8192, "tokens in the KV cache at most, over all sequences of a step")
    quick: bool = option(False, f"{_QUICK_ROUNDS} rounds, {_QUICK_TOKENS} tokens: seconds instead of a minute or two, and a rougher fit")
    seed: int = option(0, "seed of tokens and of the order of steps")
    output_json: str | None = option(None, "write every figure to this file", metavar="FILE")

    def __post_init__(self) -> None:
        check_types(self)
        named = _NAME.fullmatch(self.name) is not None
        check(named, self, "name", "must be of lower-case letters, digits, '.', '_' and '-', and begin with a letter or digit")
        check(self.name != MEASURED, self, "name", "is a file of measurements, which is never read as a device; take another")
        is_toml = self.output is None or self.output.endswith(".toml")
        check(is_toml, self, "output", "must end in .toml: that is how a device's file is told from a name")
        check(self.rounds >= 3, self, "rounds", "must be at least 3: a median of fewer is any of them")
        check(self.context_tokens >= 256, self, "context_tokens", "must be at least 256")
        check(self.seed >= 0, self, "seed", "must be at least 0")

    @property
    def taken_rounds(self) -> int:
        """Rounds that are run."""
        return min(self.rounds, _QUICK_ROUNDS) if self.quick else self.rounds

    @property
    def most_tokens(self) -> int:
        """Tokens in the KV cache of the largest step."""
        return min(self.context_tokens, _QUICK_TOKENS) if self.quick else self.context_tokens

    def as_record(self) -> dict[str, Any]:
        """What belongs beside the numbers."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("output", "output_json")}
