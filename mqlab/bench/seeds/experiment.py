"""What an experiment is: arms under one load, and the figures that somebody published of such arms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mqlab.bench.compare_options import Detokenize, Metric
from mqlab.record.stats import Interval


@dataclass(frozen=True, kw_only=True)
class SeedArm:
    """One side.

    Attributes:
        topology: a layout, or ``sync``.
        options: of the layout; engine: settings of the engine that differ from the experiment's.
    """

    label: str
    topology: str
    preset: str = "best"
    codec: str = "msgpack"
    output: str = "delta"
    detokenize: Detokenize = "front"
    http: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a figure shall be, in words and in numbers; without numbers it shall be shown.

    Attributes:
        low, high: bounds of the figure.
        whole: its whole interval must be within them, not its median alone.
        below: a claim whose figure must be greater, as ``experiment: claim``.
    """

    text: str
    low: float | None = None
    high: float | None = None
    whole: bool = False
    below: str | None = None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A figure: how many times ``over`` is ``under``, or what ``over`` is by itself.

    Attributes:
        published: as it stands in the source.
        ratio: the published ratio, where it is one.
    """

    over: str
    under: str | None = None
    metric: Metric | None = None
    published: str = "—"
    ratio: float | None = None
    source: str = ""
    wanted: Wanted

    @property
    def name(self) -> str:
        """Its arms, and its metric where that is not the experiment's."""
        arms = self.over if self.under is None else f"{self.over} / {self.under}"
        return arms if self.metric is None else f"{arms} ({self.metric})"

    def verdict(self, measured: Interval, known: Mapping[str, float]) -> str:
        """``reached``, ``not``, or ``opposite``: the whole interval is on the other side of 1 than the published ratio. ``shown`` where
        nothing else is wanted, ``open`` where what it is held against is missing.

        Args:
            known: medians of other claims, for ``Wanted.below``.
        """
        wanted = self.wanted
        if wanted.below is not None and wanted.below not in known:
            return "open"
        if wanted.low is None and wanted.high is None and wanted.below is None:
            return "shown"
        if self._meets(measured, known):
            return "reached"
        opposite = self.ratio is not None and (self.ratio > 1 > measured.high or self.ratio < 1 < measured.low)
        return "opposite" if opposite else "not"

    def _meets(self, measured: Interval, known: Mapping[str, float]) -> bool:
        wanted = self.wanted
        if wanted.below is not None:
            return measured.value < known[wanted.below]
        low, high = (measured.low, measured.high) if wanted.whole else (measured.value, measured.value)
        return (wanted.low is None or low >= wanted.low) and (wanted.high is None or high <= wanted.high)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Arms, run in turns.

    Attributes:
        metric: of claims that name none.
        engine: settings of EngineConfig that all arms have.
        workload: fields of CompareConfig; ``quick``: those that differ in a short run.
        probes: the light probes record.
        one_each: every token must come in a message of its own, or the experiment is void.
    """

    name: str
    question: str
    model: str
    arms: tuple[SeedArm, ...]
    claims: tuple[Claim, ...]
    metric: Metric = "steady_tokens_per_s"
    engine: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)
    rounds: int = 5
    probes: bool = True
    one_each: bool = False
