"""What an experiment showed beside what was published: one result, a table of several, a picture; written and read back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from mqlab.bench.comparison import Comparison
from mqlab.bench.output import read_output
from mqlab.bench.run_facts import tokens_per_message
from mqlab.bench.seeds.experiment import Claim, Experiment
from mqlab.bench.seeds.published import EXPERIMENTS
from mqlab.record.plot import BLUE, VERMILION, Plot, subplots
from mqlab.record.stats import Interval

_HEAD = ("experiment", "figure", "published", "wanted", "measured", "verdict")


@dataclass(frozen=True)
class SeedRow:
    """One figure of the table."""

    experiment: str
    claim: Claim
    measured: Interval
    verdict: str

    @property
    def cells(self) -> tuple[str, ...]:
        """As text, in the order of the columns."""
        claim = self.claim
        return self.experiment, claim.name, claim.published, claim.wanted.text, str(self.measured), self.verdict


class SeedResult:
    """One experiment that was run.

    Args:
        quick: its runs were too short to be quoted.
    """

    def __init__(self, experiment: Experiment, comparison: Comparison, *, quick: bool = False) -> None:
        self.experiment = experiment
        self.comparison = comparison
        self.quick = quick

    def measured(self, claim: Claim) -> Interval:
        """The figure of a claim, with its interval."""
        metric = claim.metric or self.experiment.metric
        if claim.under is None:
            return self.comparison.value(claim.over, metric)
        return self.comparison.ratio(claim.over, claim.under, metric)

    def medians(self) -> dict[str, float]:
        """The figures of all its claims, for other experiments to be held against."""
        return {f"{self.experiment.name}: {claim.name}": self.measured(claim).value for claim in self.experiment.claims}

    def rows(self, known: Mapping[str, float] | None = None) -> list[SeedRow]:
        """One for each claim; a void comparison reaches nothing.

        Args:
            known: figures of other experiments.
        """
        rows = [(claim, self.measured(claim)) for claim in self.experiment.claims]
        void = bool(self.void)
        return [SeedRow(self.experiment.name, claim, one, "void" if void else claim.verdict(one, known or {})) for claim, one in rows]

    @property
    def void(self) -> list[str]:
        """Why nothing may be concluded; empty where it may."""
        means = tokens_per_message(self.comparison.runs) if self.experiment.one_each else {}
        packed = [arm for arm, mean in means.items() if mean != 1]
        return [*self.comparison.void, *([f"tokens came several at once: {', '.join(packed)}"] if packed else [])]

    @property
    def notes(self) -> list[str]:
        """What a reader of its figures must know."""
        about = [*self.void, *self.comparison.warnings, *self.comparison.remarks]
        short = ["a quick run: not to be quoted"] if self.quick else []
        return [f"{self.experiment.name}: {text}" for text in (*short, *about)]

    def as_record(self) -> dict[str, Any]:
        """Everything, as JSON; ``meta`` of the comparison has commit, host and versions."""
        return {"experiment": msgspec.to_builtins(self.experiment), "quick": self.quick, "comparison": self.comparison.as_record()}

    def save(self, folder: Path) -> Path:
        """Write it as ``folder/NAME.json``."""
        path = folder / f"{self.experiment.name}.json"
        path.write_text(json.dumps(self.as_record(), indent=1) + "\n", encoding="utf-8")
        return path

    def plot(self) -> Plot:
        """See SeedTable.plot."""
        return SeedTable([self]).plot()

    def __str__(self) -> str:
        return f"{self.experiment.question}\n\n{SeedTable([self])}"

    def __repr__(self) -> str:
        return f"<SeedResult {self.experiment.name}: {'; '.join(f'{row.claim.name} {row.measured} {row.verdict}' for row in self.rows())}>"

    def _repr_html_(self) -> str:
        return f"<p><strong>{escape(self.experiment.question)}</strong></p>{SeedTable([self])._repr_html_()}"


class SeedTable:
    """Several experiments: every figure beside what was published and wanted."""

    def __init__(self, results: Iterable[SeedResult]) -> None:
        self.results = list(results)

    @staticmethod
    def of_folder(folder: str | Path) -> SeedTable:
        """All experiments that lie in a folder, in the order in which they are run.

        Raises:
            ConfigError: a file there is no experiment.
        """
        found = [load_experiment(path) for path in sorted(Path(folder).glob("*.json"))]
        places = {name: place for place, name in enumerate(EXPERIMENTS)}
        return SeedTable(sorted(found, key=lambda one: places.get(one.experiment.name, len(places))))

    @property
    def rows(self) -> list[SeedRow]:
        """All figures."""
        known = {name: value for result in self.results if not result.void for name, value in result.medians().items()}
        return [row for result in self.results for row in result.rows(known)]

    @property
    def notes(self) -> list[str]:
        """What a reader must know."""
        return [note for result in self.results for note in result.notes]

    def plot(self) -> Plot:
        """Each ratio with its interval, beside the published one; the line is where both arms are equal."""
        rows = [row for row in self.rows if row.claim.under is not None]
        figure, axes = subplots(7.5, 1.2 + 0.45 * max(len(rows), 1))
        for place, row in enumerate(reversed(rows)):
            one, label = row.measured, None if place else "measured, with its interval"
            error = [[max(0.0, one.value - one.low)], [max(0.0, one.high - one.value)]]
            axes.errorbar(one.value, place, xerr=error, fmt="D", color=VERMILION, capsize=4, label=label)
        published = [(row.claim.ratio, place) for place, row in enumerate(reversed(rows)) if row.claim.ratio is not None]
        if published:
            axes.plot(*zip(*published, strict=True), "o", mfc="none", mew=2, color=BLUE, label="published")
        axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(rows)), [_label(row) for row in reversed(rows)], fontsize=7)
        axes.set_ylim(-0.6, max(len(rows), 1) - 0.4)
        axes.set_xlabel("ratio")
        axes.grid(axis="x", alpha=0.3)
        axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        return Plot(figure, f"{len(rows)} ratios beside the published ones")

    def __str__(self) -> str:
        lines = _aligned([_HEAD, *(row.cells for row in self.rows)])
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return f"<SeedTable of {', '.join(result.experiment.name for result in self.results)}>"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in _HEAD)
        body = "".join(
            "<tr>" + "".join(f'<td style="text-align:left">{escape(cell)}</td>' for cell in row.cells) + "</tr>" for row in self.rows
        )
        notes = "<br>".join(map(escape, self.notes))
        return f"<table><tr>{head}</tr>{body}</table><p><small>{notes}</small></p>"


def load_experiment(path: str | Path) -> SeedResult:
    """An experiment as it was written; all its figures are computed from its runs.

    Raises:
        ConfigError: there is no such file, or it is something else.
    """

    def make(record: dict[str, Any]) -> SeedResult:
        experiment = msgspec.convert(record["experiment"], Experiment)
        return SeedResult(experiment, Comparison.of_record(record["comparison"]), quick=record["quick"])

    return read_output(path, "experiment of 'mqlab bench seeds'", make)


def _label(row: SeedRow) -> str:
    return f"{row.claim.name}\n{row.experiment}{', void' if row.verdict == 'void' else ''}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
