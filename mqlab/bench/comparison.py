"""What a comparison found: every run, intervals, guards, and a verdict in one sentence."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mqlab.bench.arm_run import NO_DIGESTS, Run, without_digests
from mqlab.bench.arms import CONTROL
from mqlab.bench.compare_options import METRICS, CompareConfig
from mqlab.bench.reuse import Reuse, warm_warning
from mqlab.bench.run_facts import busy_load, late_device, remarks
from mqlab.bench.show import foreign_warning
from mqlab.probes.recording import recordings_root
from mqlab.record.plot import SKY, VERMILION, Plot, subplots
from mqlab.record.stats import DRIFT_LIMIT, Interval, bootstrap_ci, bootstrap_ratio, drift, drifts
from mqlab.record.trace import Trace

if TYPE_CHECKING:
    import pandas

_SLACK = 0.02
"""By how much the promise of an interval may fall short of ``confidence`` before it is said."""

_MORE_IS_BETTER = ("output_tokens_per_s", "steady_tokens_per_s")


@dataclass(frozen=True)
class Row:
    """One arm: the metric's median with its interval, and how many times the baseline that is, round by round; None where one is 0."""

    arm: str
    value: Interval
    ratio: Interval | None
    foreign: float
    cpu: dict[str, float]


class Comparison:
    """Runs of all arms, in turns; every figure is a function of them.

    Args:
        labels: of the arms, the baseline first.
        runs: by arm, in the order of the rounds.
        config: what was asked for.
        meta: what it was measured on.
        differing: requests of an arm whose tokens were not the baseline's; found in the runs unless it is known.
    """

    def __init__(
        self,
        labels: Sequence[str],
        runs: Sequence[Sequence[Run]],
        config: CompareConfig,
        meta: dict[str, Any],
        differing: dict[str, int] | None = None,
    ) -> None:
        everything = dict(zip(labels, runs, strict=True))
        control = next((label for label in labels if label.endswith(CONTROL)), None)
        self.config = config
        self.meta = meta
        self.control = list(everything.pop(control)) if control else []
        self.runs = {label: list(done) for label, done in everything.items()}
        self.baseline = labels[0]
        self._differing = differing

    @staticmethod
    def of_record(record: dict[str, Any]) -> Comparison:
        """The comparison that ``as_record`` described."""
        runs = {label: [msgspec.convert({**NO_DIGESTS, **run}, Run) for run in runs] for label, runs in record["runs"].items()}
        return Comparison(list(runs), list(runs.values()), CompareConfig(**record["config"]), record["meta"], record["differing"])

    # --- figures

    def rows(self, metric: str | None = None) -> list[Row]:
        """Every arm, by one metric, the configured one by default."""
        name = metric or self.config.metric
        base = _values(self.runs[self.baseline], name)
        return [self._row(label, runs, name, base) for label, runs in self.runs.items()]

    def ratio(self, over: str, under: str, metric: str | None = None) -> Interval:
        """How many times the figure of ``under`` that of ``over`` is, with its interval from paired rounds; NaN where a figure is 0."""
        name = metric or self.config.metric
        values, base = _values(self.runs[over], name), _values(self.runs[under], name)
        if not (values.all() and base.all()):
            return Interval(math.nan, math.nan, math.nan, self.config.confidence)
        return bootstrap_ratio(values, base, confidence=self.config.confidence)

    def value(self, arm: str, metric: str | None = None) -> Interval:
        """An arm's median, with its interval."""
        return bootstrap_ci(_values(self.runs[arm], metric or self.config.metric), confidence=self.config.confidence)

    def probe_cost(self) -> Interval | None:
        """Share of the baseline's tokens/s that its probes cost, from its runs beside those without; None without a control."""
        if not self.control:
            return None
        with_probes = _values(self.runs[self.baseline], "output_tokens_per_s")
        ratio = bootstrap_ratio(with_probes, _values(self.control, "output_tokens_per_s"), confidence=self.config.confidence)
        return Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low, ratio.confidence)

    def reuse(self) -> dict[str, Reuse]:
        """What each arm's engine did not have to compute, over all its rounds."""
        return {label: sum((run.reuse for run in runs), Reuse()) for label, runs in self.runs.items()}

    def differing(self) -> dict[str, int]:
        """Requests of an arm, the control too, over all rounds, whose tokens were not the baseline's."""
        if self._differing is not None:
            return self._differing
        base = self.runs[self.baseline]
        return {label: sum(map(_differing, runs, base)) for label, runs in self._all_runs().items() if label != self.baseline}

    @property
    def void(self) -> list[str]:
        """Why nothing may be concluded; empty where it may."""
        late = [] if self.config.metric == "memory_mb" else late_device(self.runs)
        return [*self._differ(), *self._too_short(), *late, *busy_load(self.runs)]

    @property
    def warnings(self) -> list[str]:
        """What speaks against the figures without voiding them."""
        values = _values(self.runs[self.baseline], self.config.metric)
        foreign = float(np.median([run.foreign for runs in self.runs.values() for run in runs]))
        return [*_drift_warning(values), *self._few_rounds(len(values)), *self._warm(), *self._shared(), *foreign_warning(foreign)]

    @property
    def remarks(self) -> list[str]:
        """What explains the figures; see ``mqlab.bench.run_facts``."""
        return remarks(self.runs)

    @property
    def verdict(self) -> str:
        """The finding, with its interval, in one sentence; it says so where it is void, or where there are warnings."""
        if self.void:
            return f"void: {'; '.join(self.void)}"
        return ("doubtful: " if self.warnings else "") + self._finding()

    def _finding(self) -> str:
        others = sorted((row for row in self.rows() if row.arm != self.baseline), key=self._badness)
        what = f"({METRICS[self.config.metric]}, {self.config.rounds} rounds)"
        each = ", ".join(f"{row.arm} {_times(row.ratio)}" for row in others)
        if not any(map(_differs, others)):
            return f"no difference from {self.baseline} that this run can tell: {each} {what}"
        best, *rest = others
        if not _differs(best) or self._badness(best) > self._badness(None):
            return f"nothing beats {self.baseline}: {each} {what}"
        also = "; " + ", ".join(f"{row.arm} {_times(row.ratio)}" for row in rest) if rest else ""
        return f"{best.arm} {_times(best.ratio)} {self.baseline}{also} {what}"

    # --- exports

    @property
    def trace(self) -> Trace | None:
        """What the probes recorded of all arms, while mqlab's cache still has it; None where none were on.

        Raises:
            TraceError: the recordings are gone, or damaged.
        """
        recordings = [arm["recording"] for arm in self.meta["arms"] if arm["recording"] is not None]
        return Trace.merge(Trace.of(recordings_root() / recording) for recording in recordings) if recordings else None

    def to_pandas(self) -> pandas.DataFrame:
        """One row a run: arm, round and every figure."""
        import pandas

        rows = []
        for label, runs in self._all_runs().items():
            for number, run in enumerate(runs):
                figures = without_digests(run)
                cpu = {f"cpu_{who}": share for who, share in figures.pop("cpu").items()}
                pss = {f"pss_mb_{who}": size for who, size in figures.pop("pss_mb").items()}
                flat = figures.pop("reuse") | figures.pop("device") | cpu | pss
                rows.append({"arm": label, "round": number, **figures, **flat})
        return pandas.DataFrame(rows)

    def as_record(self) -> dict[str, Any]:
        """Everything, as JSON."""
        cost = self.probe_cost()
        return {
            "verdict": self.verdict,
            "void": self.void,
            "differing": self.differing(),
            "warnings": self.warnings,
            "metric": self.config.metric,
            "rows": [asdict(row) for row in self.rows()],
            "probe_cost": asdict(cost) if cost else None,
            "config": asdict(self.config),
            "runs": {label: [without_digests(run) for run in runs] for label, runs in self._all_runs().items()},
            "meta": self.meta,
        }

    def plot(self) -> Plot:
        """Each arm's runs as dots, its median and interval as a bar, in the order of the arms."""
        rows = self.rows()
        figure, axes = subplots(7.5, 1.1 + 0.55 * len(rows))
        for place, row in enumerate(reversed(rows)):
            values = _values(self.runs[row.arm], self.config.metric)
            axes.plot(values, np.full(len(values), place), "o", color=SKY, alpha=0.7, label="runs" if not place else None)
            error = [[row.value.value - row.value.low], [row.value.high - row.value.value]]
            axes.errorbar(row.value.value, place, xerr=error, fmt="D", color=VERMILION, capsize=5, label="median" if not place else None)
        axes.set_yticks(range(len(rows)), [row.arm for row in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlabel(METRICS[self.config.metric])
        axes.grid(axis="x", alpha=0.3)
        axes.legend(frameon=False, loc="best")
        axes.set_title(_wrapped(self.verdict), fontsize=9, loc="left")
        return Plot(figure, self.verdict)

    def __str__(self) -> str:
        lines = [self.verdict, ""]
        width = max(map(len, self.runs))
        head = f"{'arm':<{width}} {METRICS[self.config.metric]:>34}   × {self.baseline}"
        lines += [head, *(f"{row.arm:<{width}} {row.value!s:>34}   {_times(row.ratio)}" for row in self.rows())]
        return "\n".join([*lines, *self._notes()])

    def __repr__(self) -> str:
        return f"<Comparison: {self.verdict}>"

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<tr><td style="text-align:left">{escape(row.arm)}</td><td>{escape(str(row.value))}</td><td>{escape(_times(row.ratio))}</td>'
            f"<td>{escape(', '.join(f'{who} {share:.2f}' for who, share in row.cpu.items()))}</td>"
            f"<td>{self.value(row.arm, 'memory_mb').value:,.0f}</td><td>{row.foreign:.0%}</td></tr>"
            for row in self.rows()
        )
        names = ("arm", METRICS[self.config.metric], f"× {self.baseline}", "CPUs used", "memory (PSS), MB", "others' share")
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        notes = "".join(f"<br>{escape(note)}" for note in self._notes())
        return f"<p><strong>{escape(self.verdict)}</strong>{notes}</p><table><tr>{head}</tr>{cells}</table>"

    # --- inner workings

    def _all_runs(self) -> dict[str, list[Run]]:
        return self.runs | ({f"{self.baseline} {CONTROL}": self.control} if self.control else {})

    def _row(self, label: str, runs: list[Run], name: str, base: np.ndarray) -> Row:
        values, confidence = _values(runs, name), self.config.confidence
        cpu = {who: float(np.median([run.cpu[who] for run in runs])) for who in runs[0].cpu}
        foreign = float(np.median([run.foreign for run in runs]))
        ratio = bootstrap_ratio(values, base, confidence=confidence) if values.all() and base.all() else None
        return Row(label, bootstrap_ci(values, confidence=confidence), ratio, foreign, cpu)

    def _badness(self, row: Row | None) -> float:
        """In which order arms are named; None is the baseline."""
        ratio = row.ratio.value if row and row.ratio else 1.0
        return -ratio if self.config.metric in _MORE_IS_BETTER else ratio

    def _differ(self) -> list[str]:
        wrong = [f"{label} in {count}" for label, count in self.differing().items() if count]
        of = self.config.num_prompts * len(self.runs[self.baseline])
        return [f"outputs differ from the baseline's: {', '.join(wrong)} of {of} requests"] if wrong else []

    def _too_short(self) -> list[str]:
        nothing = [label for label, runs in self.runs.items() if not _values(runs, self.config.metric).all()]
        remedy = "which is too short: raise --num-prompts or --output-len"
        return [f"{METRICS[self.config.metric]}: 0 in a run of {', '.join(nothing)}, {remedy}"] if nothing else []

    def _few_rounds(self, rounds: int) -> list[str]:
        """The range of n runs holds the true median in all but 2 of 2ⁿ cases, and no interval is wider."""
        holds = 1 - 2 * 0.5**rounds
        if holds >= self.config.confidence - _SLACK:
            return []
        return [
            f"intervals of {rounds} rounds hold the truth in {holds:.0%} of cases at most, not {self.config.confidence:.0%}: raise --rounds"
        ]

    def _warm(self) -> list[str]:
        shares = [one.cached_share or 0.0 for one in self.reuse().values()]
        return warm_warning(max(shares), "prefix" if self.config.prefix_len else "random", "an engine's")

    def _shared(self) -> list[str]:
        if self.config.metric != "memory_mb" or self.config.alone:
            return []
        return ["a page that several arms hold counts to each in part: add --alone for what an arm holds by itself"]

    def _notes(self) -> list[str]:
        cost = self.probe_cost()
        probes = [f"probes cost {cost.value:.1%} [{cost.low:.1%}, {cost.high:.1%}] of {self.baseline}'s tokens/s"] if cost else []
        same = [] if self.void else ["all arms gave the same tokens"]
        reused = [f"{label}: {one}" for label, one in self.reuse().items() if str(one)]
        return [*same, *reused, *self.remarks, *probes, *(f"warning: {warning}" for warning in self.warnings)]


def _values(runs: Sequence[Run], metric: str) -> np.ndarray:
    return np.array([getattr(run, metric) for run in runs])


def _differing(run: Run, base: Run) -> int:
    """By their tokens where both show them, else by their texts."""
    pairs = (run.outputs, base.outputs) if run.outputs and base.outputs else (run.texts, base.texts)
    return sum(one != other for one, other in zip(*pairs, strict=True))


def _drift_warning(values: np.ndarray) -> list[str]:
    if not values.all() or not drifts(values):
        return []
    return [f"the baseline drifted by {drift(values):+.0%} over the rounds (the limit is {DRIFT_LIMIT:.0%}): run it again"]


def _differs(row: Row) -> bool:
    return row.ratio is not None and 1.0 not in row.ratio


def _times(ratio: Interval | None) -> str:
    return "–" if ratio is None else f"{ratio.value:.2f}× [{ratio.low:.2f}–{ratio.high:.2f}]"


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 100))
