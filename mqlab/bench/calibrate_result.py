"""What ``mqlab calibrate`` found, and how it is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from mqlab.bench.calibrate_fit import Timed
from mqlab.bench.show import Circumstances, figures_html
from mqlab.model.cost import ModelCost, step_seconds
from mqlab.model.device import Device
from mqlab.models.devices import own_devices
from mqlab.record.plot import BLUE, VERMILION, Plot, subplots

if TYPE_CHECKING:
    import pandas

TYPICAL_LIMIT = 0.08
"""Root mean square of the rows' errors above which a fit is called bad: simulated and real throughput are to agree within a tenth."""

ROW_LIMIT = 0.20
"""Likewise, of one row."""

SCATTER_LIMIT = 0.25
"""Half the range of a step's times over their median, at the median step, above which the machine is called unsteady."""


@dataclass(frozen=True)
class Row:
    """One kind of step.

    Attributes:
        median_ms, least_ms, most_ms: as measured.
        fitted_ms: on the device.
    """

    step: str
    tokens: int
    median_ms: float
    least_ms: float
    most_ms: float
    fitted_ms: float

    @property
    def error(self) -> float:
        """By which share the device is slower than what was measured; negative where it is faster."""
        return self.fitted_ms / self.median_ms - 1

    @property
    def scatter(self) -> float:
        """Half the range over the median."""
        return (self.most_ms - self.least_ms) / self.median_ms / 2


def rows_of(timed: Sequence[Timed], device: Device, cost: ModelCost) -> tuple[Row, ...]:
    """Every step, as measured and as the device has it."""
    return tuple(
        Row(
            step=one.step.name,
            tokens=one.step.tokens,
            median_ms=1e3 * one.median_s,
            least_ms=1e3 * min(one.seconds),
            most_ms=1e3 * max(one.seconds),
            fitted_ms=1e3 * step_seconds(device, cost, one.work),
        )
        for one in timed
    )


@dataclass(frozen=True, kw_only=True)
class Calibration(Circumstances):
    """A device fitted to this machine, the steps it was fitted to, and what they were measured with.

    Attributes:
        file: of the device.
        workload: the settings, as they took effect.
    """

    device: Device
    file: str
    rows: tuple[Row, ...]
    workload: dict[str, Any] = field(default_factory=dict)

    @property
    def typical_error(self) -> float:
        """Root mean square of the rows' errors."""
        return math.sqrt(sum(row.error**2 for row in self.rows) / len(self.rows))

    @property
    def worst(self) -> Row:
        """The row with the largest error."""
        return max(self.rows, key=lambda row: abs(row.error))

    @property
    def warnings(self) -> list[str]:
        """What a reader of the figures must know."""
        return [*super().warnings, *self._bad_fit(), *self._unsteady()]

    def _bad_fit(self) -> list[str]:
        if self.typical_error <= TYPICAL_LIMIT and abs(self.worst.error) <= ROW_LIMIT:
            return []
        threads = ", or with one thread less" if self.engine.get("num_threads", 1) > 1 else ""
        return [
            f"the fit is off by {self.typical_error:.0%} on the whole (limit {TYPICAL_LIMIT:.0%}) and by {self.worst.error:+.0%} for "
            f"{self.worst.step} (limit {ROW_LIMIT:.0%}): simulated times will not be this machine's; run it again when nothing else runs"
            + threads
        ]

    def _unsteady(self) -> list[str]:
        scatter = median(row.scatter for row in self.rows)
        if scatter <= SCATTER_LIMIT:
            return []
        return [f"steps took {scatter:.0%} more or less from one time to the next: run it again when nothing else runs, or raise --rounds"]

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        rows = [asdict(row) | {"error": row.error, "scatter": row.scatter} for row in self.rows]
        return {
            "device": asdict(self.device),
            "typical_error": self.typical_error,
            "worst": {"step": self.worst.step, "error": self.worst.error},
            "rows": rows,
            "workload": self.workload,
            **self.circumstances(),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as in JSON."""
        import pandas

        return pandas.DataFrame(self.as_record()["rows"])

    def plot(self) -> Plot:
        """Milliseconds on the device over those measured, a dot for each kind of step; on the line they agree."""
        figure, axes = subplots(5.5, 5)
        measured = [row.median_ms for row in self.rows]
        ends = (min(measured), max(measured))
        axes.plot(ends, ends, color=VERMILION, lw=1, label="equal")
        axes.plot(measured, [row.fitted_ms for row in self.rows], "o", color=BLUE, ms=4, label="steps")
        axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel=f"on {self.device.name}, ms")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        axes.set_title(self._summary(), fontsize=10, loc="left")
        return Plot(figure, self._summary())

    def __str__(self) -> str:
        width = max(len(row.step) for row in self.rows)
        lines = [f"{'step':{width}}  {'median ms':>9}  {'least':>8}  {'most':>8}  {'fitted':>8}  {'error':>6}"]
        for row in self.rows:
            times = f"{row.median_ms:9.2f}  {row.least_ms:8.2f}  {row.most_ms:8.2f}  {row.fitted_ms:8.2f}"
            lines.append(f"{row.step:{width}}  {times}  {row.error:+6.1%}")
        return "\n".join([*lines, self._summary(), self._rates(), self._use(), *self.warned()])

    def __repr__(self) -> str:
        return f"<calibration: {self._summary()}>"

    def _repr_html_(self) -> str:
        figures = {row.step: f"{row.median_ms:.2f} ms, fitted {row.fitted_ms:.2f} ms ({row.error:+.1%})" for row in self.rows}
        return figures_html(figures, [self._summary(), self._rates(), self._use(), *self.notes, *self.warned()])

    def _summary(self) -> str:
        return f"{self.device.title}: within {self.typical_error:.1%} on the whole, {self.worst.error:+.1%} at worst ({self.worst.step})"

    def _rates(self) -> str:
        device, fit = self.device, self.device.fit
        return (
            f"reached {device.bandwidth_tb_s * 1e3:.3g} GB/s and {device.tflops * 1e3:.3g} GFLOP/s in {device.dtype} (exponent "
            f"{fit.exponent:.2f}); {fit.step_ms:.3g} ms a step, {fit.sequence_us:.3g} µs a sequence, {fit.context_ns:.3g} ns a pair of "
            f"tokens, {fit.cached_ns:.3g} ns a token in the cache, {fit.crowd_ns:.3g} ns a token that runs times their number"
        )

    def _use(self) -> str:
        model, name = self.engine.get("model"), self.device.name
        known = Path(self.file).parent == own_devices()
        return f"written to {self.file}: sim:{model}@{name if known else self.file} runs at this speed"
