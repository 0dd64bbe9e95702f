"""What ``mqlab bench latency`` measured, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mqlab.bench.cpu import CpuReport
from mqlab.bench.show import figures_html, foreign_note
from mqlab.record.plot import Plot

if TYPE_CHECKING:
    import pandas

PERCENTILES = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True, kw_only=True)
class LatencyResult:
    """Seconds of each batch, and what they were measured with.

    Attributes:
        latencies_s: from handing over the batch to the end of its last sequence; warm-up batches are not among them.
        config, engine: the settings, as they took effect.
        notes: what was asked for and not done.
        cpu: who used the processors.
        meta: where and with what; see ``mqlab.record.metadata.environment``.
    """

    latencies_s: tuple[float, ...]
    config: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    cpu: CpuReport | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def average_s(self) -> float:
        """Mean seconds of a batch."""
        return float(np.mean(self.latencies_s))

    @property
    def percentiles_s(self) -> dict[int, float]:
        """Seconds by percentile, linear between batches."""
        return dict(zip(PERCENTILES, np.percentile(self.latencies_s, PERCENTILES).tolist(), strict=True))

    def as_record(self) -> dict[str, Any]:
        """For JSON; the first three names are those of vLLM's ``bench latency``."""
        return {
            "avg_latency": self.average_s,
            "latencies": list(self.latencies_s),
            "percentiles": {str(name): value for name, value in self.percentiles_s.items()},
            "workload": self.config,
            "engine": self.engine,
            "notes": list(self.notes),
            "cpu": self.cpu.as_record() if self.cpu else None,
            "meta": self.meta,
        }

    def to_pandas(self) -> pandas.DataFrame:
        """One row a batch: ``latency_s``."""
        import pandas

        return pandas.DataFrame({"latency_s": self.latencies_s})

    def plot(self) -> Plot:
        """Each batch as a dot, with the median and the spread of the middle 80 %."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.5, 3.2), layout="constrained", facecolor="white")
        axes = figure.subplots()
        spread = self.percentiles_s
        axes.axhspan(spread[10], spread[90], color="#56B4E9", alpha=0.25, label="10 % to 90 %")
        axes.axhline(spread[50], color="#D55E00", linestyle="--", label=f"median, {spread[50]:.4g} s")
        axes.plot(range(1, len(self.latencies_s) + 1), self.latencies_s, "o", color="#0072B2", label="batches")
        axes.set_xlabel("batch")
        axes.set_ylabel("seconds")
        axes.set_ylim(0, 1.1 * max(self.latencies_s))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="lower right")
        title = f"{self._batch()}: {self.average_s:.4g} s on average"
        axes.set_title(title, fontsize=10, loc="left")
        return Plot(figure, title)

    def __str__(self) -> str:
        lines = [f"Avg latency: {self.average_s} seconds"]
        lines += [f"{name}% percentile latency: {value} seconds" for name, value in self.percentiles_s.items()]
        return "\n".join([self._workload(), *lines, *foreign_note(self.cpu)])

    def __repr__(self) -> str:
        return f"<{self._batch()}: {self.average_s:.4g} s on average of {len(self.latencies_s)}>"

    def _repr_html_(self) -> str:
        rows = {"average": f"{self.average_s:.4g} s"} | {f"{name} %": f"{value:.4g} s" for name, value in self.percentiles_s.items()}
        return figures_html(rows, [self._workload(), *self.notes, *foreign_note(self.cpu)])

    def _batch(self) -> str:
        sizes = [self.config.get(name) for name in ("batch_size", "n", "input_len", "output_len")]
        return "{} prompts × {} sequences of {} + {} tokens".format(*sizes)

    def _workload(self) -> str:
        warm_up = self.config.get("num_iters_warmup")
        return (
            f"topology {self.config.get('topology')}, without detokenising and HTTP; {self._batch()}, fresh each time, "
            f"seed {self.config.get('seed')}; {len(self.latencies_s)} batches, {warm_up} before them to warm up, not counted"
        )
