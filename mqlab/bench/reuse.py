"""What an engine did not have to compute token by token: prompt tokens out of its prefix cache, and guesses that held."""

from __future__ import annotations

import re
import urllib.request
from http.client import HTTPException

import msgspec

from mqlab.types import EngineStats

SHARED_BY_DESIGN = ("prefix", "sonnet", "trace")
"""Datasets whose prompts begin alike, so that a prefix cache is part of what is measured."""

_TIMEOUT_S = 5.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_NAMES = {
    "looked_up": "prefix_cache_queries_total",
    "found": "prefix_cache_hits_total",
    "guessed": "spec_decode_num_draft_tokens_total",
    "kept": "spec_decode_num_accepted_tokens_total",
}
"""Counters of a /metrics page, without the server's own prefix: vLLM's (0.33) and ours."""


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of an engine: since it started, or of a run as the difference of two readings.

    Attributes:
        looked_up: prompt tokens that were looked up in the prefix cache; found: those that it had.
        guessed: tokens guessed by speculative decoding; kept: those that the model confirmed.
    """

    looked_up: int = 0
    found: int = 0
    guessed: int = 0
    kept: int = 0

    @staticmethod
    def of(stats: EngineStats) -> Reuse:
        """What an engine's own counters say."""
        return Reuse(looked_up=stats.prefix_queries, found=stats.prefix_hits, guessed=stats.drafted, kept=stats.accepted)

    @property
    def cached_share(self) -> float | None:
        """Found / looked up, 0 to 1; None where nothing was looked up: no prefix cache, or one that is off."""
        return self.found / self.looked_up if self.looked_up else None

    @property
    def kept_share(self) -> float | None:
        """Kept / guessed, 0 to 1; None where nothing was guessed."""
        return self.kept / self.guessed if self.guessed else None

    def since(self, before: Reuse) -> Reuse:
        """What was counted after ``before``."""
        return Reuse(**{name: getattr(self, name) - getattr(before, name) for name in self.__struct_fields__})

    def __add__(self, other: Reuse) -> Reuse:
        return Reuse(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    def __str__(self) -> str:
        cached = [] if self.cached_share is None else [f"{self.cached_share:.1%} of the prompt tokens came from the prefix cache"]
        kept = [] if self.kept_share is None else [f"{self.kept_share:.1%} of {self.guessed:,} guessed tokens were kept"]
        return "; ".join([*cached, *kept])


def warm_warning(share: float | None, dataset: str | None, whose: str) -> list[str]:
    """A warning where a cache answered for prompts that are meant to be new; nothing otherwise."""
    warm = bool(share) and dataset not in SHARED_BY_DESIGN
    return [f"{share:.0%} of the prompt tokens were in {whose} prefix cache"] if warm else []


def server_reuse(url: str, headers: dict[str, str]) -> Reuse | None:
    """What the /metrics page of a server has counted, all its engines and models together; None where it does not say."""
    try:
        with _OPENER.open(urllib.request.Request(f"{url}/metrics", headers=headers), timeout=_TIMEOUT_S) as answer:
            page = answer.read().decode(errors="replace")
        counts = {name: _total(page, metric) for name, metric in _NAMES.items()}
    except (OSError, HTTPException, ValueError, OverflowError):
        return None
    return Reuse(**{name: count or 0 for name, count in counts.items()}) if counts["looked_up"] is not None else None


def _total(page: str, metric: str) -> int | None:
    values = re.findall(rf"^\w+:{metric}(?:\{{.*\}})? (\S+)", page, re.MULTILINE)
    return int(sum(map(float, values))) if values else None
