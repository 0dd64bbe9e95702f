"""What ``mqlab bench calibration`` found, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mqlab.bench.agreement_options import AgreementConfig, Workload
from mqlab.bench.arm_run import Run, without_digests
from mqlab.bench.compare_options import METRICS, Metric
from mqlab.bench.run_facts import late_device, oversleep
from mqlab.bench.show import figures_html, foreign_warning
from mqlab.record.plot import BLUE, VERMILION, Plot, subplots
from mqlab.record.stats import Interval, bootstrap_ratio, drift, drifts

if TYPE_CHECKING:
    import pandas

LIMIT = 0.10
"""By how much simulated and real may differ."""

COMPARED: tuple[Metric, ...] = ("output_tokens_per_s", "tpot_ms")


@dataclass(frozen=True)
class Rounds:
    """The runs of one workload, by round, from the real engine and from the simulated device."""

    workload: Workload
    real: list[Run]
    simulated: list[Run]


@dataclass(frozen=True)
class Row:
    """One workload by one metric.

    Attributes:
        real, simulated: medians.
        ratio: simulated over real, round by round.
    """

    workload: str
    metric: Metric
    real: float
    simulated: float
    ratio: Interval

    @property
    def within(self) -> bool:
        """Whether the ratio is within the limit."""
        return abs(self.ratio.value - 1) <= LIMIT

    @property
    def surely(self) -> bool:
        """Whether all of its interval is."""
        return self.ratio.low >= 1 - LIMIT and self.ratio.high <= 1 + LIMIT


class Agreement:
    """Runs of both in turns; every figure is a function of them.

    Args:
        rounds: by workload.
        config: what was asked for.
        meta: what it was measured on.
    """

    def __init__(self, rounds: Sequence[Rounds], config: AgreementConfig, meta: dict[str, Any]) -> None:
        self.rounds = list(rounds)
        self.config = config
        self.meta = meta

    @property
    def rows(self) -> list[Row]:
        """Every workload by every metric."""
        return [self._row(one, metric) for one in self.rounds for metric in COMPARED]

    @property
    def agrees(self) -> bool:
        """Whether every ratio is within the limit, and nothing forbids to believe it."""
        return not self.void and all(row.within for row in self.rows)

    @property
    def void(self) -> list[str]:
        """Why nothing may be concluded; empty where it may."""
        return late_device({"simulated": self._all("simulated")})

    @property
    def warnings(self) -> list[str]:
        """What speaks against the figures without voiding them."""
        everything = [run.foreign for run in (*self._all("real"), *self._all("simulated"))]
        return [*self._drifts(), *foreign_warning(float(np.median(everything)))]

    @property
    def finding(self) -> str:
        """In one sentence."""
        if self.void:
            return f"void: {'; '.join(self.void)}"
        off = [row for row in self.rows if not row.within]
        doubt = "doubtful: " if self.warnings else ""
        if off:
            each = "; ".join(f"{row.workload}: {METRICS[row.metric]} {_times(row.ratio)}" for row in off)
            return f"{doubt}simulated and real differ by more than {LIMIT:.0%}: {each}"
        ratios = ", ".join(f"{METRICS[metric]} {self._range(metric)}" for metric in COMPARED)
        return f"{doubt}simulated and real agree within {LIMIT:.0%}{self._sureness()}: {ratios}"

    def as_record(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "finding": self.finding,
            "agrees": self.agrees,
            "limit": LIMIT,
            "void": self.void,
            "warnings": self.warnings,
            "oversleep": self._oversleep(),
            "rows": [asdict(row) | {"within": row.within, "surely": row.surely} for row in self.rows],
            "config": self.config.as_record(),
            "workloads": [one.workload.as_record() for one in self.rounds],
            "runs": [{side: list(map(without_digests, getattr(one, side))) for side in ("real", "simulated")} for one in self.rounds],
            "meta": self.meta,
        }

    def to_pandas(self) -> pandas.DataFrame:
        """One row a workload and metric."""
        import pandas

        rows = [(row.workload, row.metric, row.real, row.simulated, row.ratio.value, row.ratio.low, row.ratio.high) for row in self.rows]
        return pandas.DataFrame(rows, columns=["workload", "metric", "real", "simulated", "ratio", "low", "high"])

    def plot(self) -> Plot:
        """Simulated over real with its interval, for each workload and metric, over the limit."""
        rows = self.rows[::-1]
        figure, axes = subplots(8.5, 1.1 + 0.35 * len(rows))
        axes.axvspan(1 - LIMIT, 1 + LIMIT, color="0.5", alpha=0.15, label=f"within {LIMIT:.0%}")
        axes.axvline(1, color="0.5", lw=1)
        for metric, color, mark in zip(COMPARED, (BLUE, VERMILION), "os", strict=True):
            own = [(place, row.ratio) for place, row in enumerate(rows) if row.metric == metric]
            values = [ratio.value for _, ratio in own]
            error = [[ratio.value - ratio.low for _, ratio in own], [ratio.high - ratio.value for _, ratio in own]]
            axes.errorbar(values, [place for place, _ in own], xerr=error, fmt=mark, color=color, capsize=4, label=METRICS[metric])
        axes.set_yticks(range(len(rows)), [row.workload if row.metric == COMPARED[0] else "" for row in rows])
        axes.set_xlabel("simulated / real")
        axes.grid(axis="x", alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
        axes.set_title(self._short(), fontsize=10, loc="left")
        return Plot(figure, self.finding)

    def __str__(self) -> str:
        width = max(len(row.workload) for row in self.rows)
        what = max(map(len, (METRICS[metric] for metric in COMPARED)))
        lines = [self.finding, "", f"{'':{width}}  {'':{what}}  {'real':>8}  {'simulated':>9}  simulated / real"]
        for row in self.rows:
            name = f"{row.workload:{width}}  {METRICS[row.metric]:{what}}"
            lines.append(f"{name}  {row.real:8.2f}  {row.simulated:9.2f}  {_times(row.ratio)}{'' if row.within else '  too far'}")
        return "\n".join([*lines, *self._notes()])

    def __repr__(self) -> str:
        return f"<agreement: {self.finding}>"

    def _repr_html_(self) -> str:
        figures = {
            f"{row.workload}, {METRICS[row.metric]}": f"real {row.real:.2f}, simulated {row.simulated:.2f}: {_times(row.ratio)}"
            for row in self.rows
        }
        return figures_html(figures, [self.finding, *self._notes()])

    def _row(self, rounds: Rounds, metric: Metric) -> Row:
        real, simulated = (np.array([getattr(run, metric) for run in runs]) for runs in (rounds.real, rounds.simulated))
        ratio = bootstrap_ratio(simulated, real, confidence=self.config.confidence)
        return Row(rounds.workload.name, metric, float(np.median(real)), float(np.median(simulated)), ratio)

    def _all(self, side: str) -> list[Run]:
        return [run for one in self.rounds for run in getattr(one, side)]

    def _drifts(self) -> list[str]:
        """Of the real engine alone: the simulated device cannot."""
        speeds = {one.workload.name: [run.output_tokens_per_s for run in one.real] for one in self.rounds}
        return [f"the real engine drifted by {drift(own):+.0%} over the rounds of {name}" for name, own in speeds.items() if drifts(own)]

    def _range(self, metric: Metric) -> str:
        ratios = [row.ratio.value for row in self.rows if row.metric == metric]
        return f"{min(ratios):.2f}× to {max(ratios):.2f}×"

    def _sureness(self) -> str:
        unsure = sum(not row.surely for row in self.rows)
        return f", intervals included, in {len(self.rows) - unsure} of {len(self.rows)} rows" if unsure else ", intervals included"

    def _oversleep(self) -> float:
        return oversleep({"simulated": self._all("simulated")}).get("simulated", 0.0)

    def _short(self) -> str:
        return f"{self.config.topology}, {self.config.device}: {'agree' if self.agrees else 'do not agree'} within {LIMIT:.0%}"

    def _notes(self) -> list[str]:
        late = f"the simulated device was noticed {self._oversleep():.1%} of its time late"
        return [late, *(f"warning: {warning}" for warning in self.warnings)]


def _times(ratio: Interval) -> str:
    return f"{ratio.value:.2f}× [{ratio.low:.2f}–{ratio.high:.2f}]"
