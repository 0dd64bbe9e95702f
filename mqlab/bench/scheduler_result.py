"""What ``mqlab bench scheduler`` measured, and how it is shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from mqlab.bench.show import Circumstances, figures_html
from mqlab.record.plot import BLUE, VERMILION, Plot, subplots

if TYPE_CHECKING:
    import pandas

KINDS = {"plain": "nothing but a temperature", "steering": "a repetition penalty: the whole history goes along"}
"""Kinds of requests, and what they ask for."""


@dataclass(frozen=True)
class Row:
    """Medians over the steps of a core with one kind of request.

    Attributes:
        kind: of KINDS.
        schedule_us: to decide a step and launch it.
        output_us: to account what it drew and hand it out.
    """

    kind: str
    running: int
    waiting: int
    schedule_us: float
    output_us: float

    @property
    def step_us(self) -> float:
        """Both."""
        return self.schedule_us + self.output_us

    @property
    def each_us(self) -> float:
        """Of a step, for each running request."""
        return self.step_us / self.running


@dataclass(frozen=True, kw_only=True)
class SchedulerResult(Circumstances):
    """Microseconds of a step beside the model, by how many requests run and wait, and what they were measured with.

    Attributes:
        workload: the settings, as they took effect.
    """

    rows: tuple[Row, ...]
    workload: dict[str, Any] = field(default_factory=dict)

    @property
    def largest(self) -> Row:
        """With the most running and waiting, plain where there are both."""
        return max(self.rows, key=lambda row: (row.running, row.waiting, row.kind == "plain"))

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        rows = [asdict(row) | {"step_us": row.step_us, "us_per_running": row.each_us} for row in self.rows]
        return {"us_per_running": self.largest.each_us, "rows": rows, "kinds": KINDS, "workload": self.workload, **self.circumstances()}

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as in JSON."""
        import pandas

        return pandas.DataFrame(self.as_record()["rows"])

    def plot(self) -> Plot:
        """µs a running request over how many run, a line for each kind and number that wait."""
        figure, axes = subplots(7.5, 3.4)
        lines = sorted({(row.kind, row.waiting) for row in self.rows})
        marks = dict(zip(sorted({waiting for _, waiting in lines}), "osv^Dx*+", strict=False))
        for kind, waiting in lines:
            points = [(row.running, row.each_us) for row in self.rows if (row.kind, row.waiting) == (kind, waiting)]
            color, style = (BLUE, "-") if kind == "plain" else (VERMILION, "--")
            axes.plot(*zip(*points, strict=True), style + marks.get(waiting, "."), color=color, label=f"{kind}, {waiting} waiting")
        axes.set_xscale("log", base=2)
        axes.set_ylim(0)
        axes.set_xlabel("running requests")
        axes.set_ylabel("µs a step and running request")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        axes.set_title(self._summary(), fontsize=10, loc="left")
        return Plot(figure, self._summary())

    def __str__(self) -> str:
        lines = [
            f"{'requests':8}  {'running':>7}  {'waiting':>7}  {'schedule µs':>11}  {'output µs':>9}  {'step µs':>8}  {'per running':>11}"
        ]
        for row in self.rows:
            figures = f"{row.schedule_us:11.1f}  {row.output_us:9.1f}  {row.step_us:8.1f}  {row.each_us:11.2f}"
            lines.append(f"{row.kind:8}  {row.running:7}  {row.waiting:7}  {figures}")
        return "\n".join([self._workload(), *lines, *self.warned()])

    def __repr__(self) -> str:
        return f"<scheduler: {self._summary()}>"

    def _repr_html_(self) -> str:
        figures = {f"{row.kind}, {row.running} running, {row.waiting} waiting": _told(row) for row in self.rows}
        return figures_html(figures, [self._workload(), *self.notes, *self.warned()])

    def _summary(self) -> str:
        return f"{self.largest.each_us:.2f} µs a step and request with {self.largest.running} running"

    def _workload(self) -> str:
        kinds = "; ".join(f"{name} requests have {what}" for name, what in KINDS.items())
        return (
            f"scheduling and output processing with a runner that answers at once; {kinds}; medians of {self.workload.get('num_iters')} "
            f"rounds of {self.workload.get('steps')} steps, in each of which every row has its turn"
        )


def _told(row: Row) -> str:
    return f"{row.step_us:.1f} µs a step, {row.each_us:.2f} µs for each that runs"
