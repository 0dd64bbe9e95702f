"""What ``mqlab bench capacity`` found, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from math import inf, isinf
from typing import TYPE_CHECKING, Any

from mqlab.bench.virtual import VirtualRun

if TYPE_CHECKING:
    import pandas

MAX_BACKLOG = 0.05
"""Of the requests: more of them without a first token, when the last one comes, and the engine does not keep up."""

LEAST_LIVES = 3.0
"""So many times as long as the median request lives they must come, or nobody knows: while seats are free, none waits however many come."""

_COLUMNS = ("rate/s", "served/s", "tokens/s", "TTFT p50", "p99 ms", "TPOT p50", "p99 ms", "running", "device", "keeps up")


@dataclass(frozen=True, kw_only=True)
class CapacityResult:
    """Runs by rate, ascending.

    Attributes:
        workload, dataset, engine: the settings, as they took effect.
    """

    runs: dict[float, VirtualRun]
    workload: dict[str, Any]
    dataset: dict[str, Any]
    engine: dict[str, Any]
    meta: dict[str, Any] = field(default_factory=dict)

    def keeps_up(self, rate: float) -> bool | None:
        """Whether the engine did at this rate; None where the requests were too few to tell."""
        run = self.runs[rate]
        if isinf(rate) or run.backlog > MAX_BACKLOG:
            return False
        return True if run.arrived_s >= LEAST_LIVES * run.median_life_s else None

    @property
    def knee(self) -> float | None:
        """The highest rate up to which the engine keeps up; None where it never does."""
        kept = None
        for rate in self.runs:
            if not self.keeps_up(rate):
                break
            kept = rate
        return kept

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A record for each rate."""
        return [{"request_rate": _number(rate), "keeps_up": self.keeps_up(rate), **run.as_record()} for rate, run in self.runs.items()]

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        facts = {"knee": self.knee, "max_backlog": MAX_BACKLOG, "rows": self.rows}
        return {**facts, "workload": self.workload, "dataset": self.dataset, "engine": self.engine, "meta": self.meta}

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as in JSON."""
        import pandas

        return pandas.DataFrame(self.rows)

    def __str__(self) -> str:
        rows = [_COLUMNS, *self._table()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*lines, self._summary()])

    def __repr__(self) -> str:
        return f"CapacityResult({self.engine['model']!r}: {self._summary()})"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in _COLUMNS)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self._table())
        return f"<table><tr>{head}</tr>{rows}</table><p><small>{escape(self._summary())}</small></p>"

    def _table(self) -> list[tuple[str, ...]]:
        return [self._cells(rate, run) for rate, run in self.runs.items()]

    def _cells(self, rate: float, run: VirtualRun) -> tuple[str, ...]:
        ttft, tpot = run.spreads["ttft"], run.spreads["tpot"]
        record = run.as_record()
        latencies = [f"{value or 0:.{digits}f}" for one, digits in ((ttft, 0), (tpot, 1)) for value in (one.median, one.percentiles["p99"])]
        kept = {True: "yes", False: "no", None: "too few"}[self.keeps_up(rate)]
        speed = f"{run.request_throughput:.2f}", f"{run.output_throughput:.0f}"
        return f"{rate:g}", *speed, *latencies, str(record["max_concurrent_requests"]), f"{run.device_share:.0%}", kept

    def _summary(self) -> str:
        most = max(run.output_throughput for run in self.runs.values())
        knee = "keeps up with none of these rates" if self.knee is None else f"keeps up with {self.knee:g} requests/s"
        untold = ", ".join(f"{rate:g}" for rate in self.runs if self.keeps_up(rate) is None)
        knee += f"; too few requests to tell at {untold}: raise --num-prompts" if untold else ""
        return f"{knee}; at most {most:.0f} output tokens/s. Virtual time: the device's alone, whatever the layout."


def _number(rate: float) -> float | str:
    """JSON has no infinity; ``vllm bench serve`` writes it as a word, too."""
    return "inf" if rate == inf else rate
