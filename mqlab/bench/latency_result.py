"""What ``mqlab bench latency`` measured, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mqlab.bench.show import Circumstances, figures_html
from mqlab.record.plot import BLUE, SKY, VERMILION, Plot, subplots

if TYPE_CHECKING:
    import pandas

PERCENTILES = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True, kw_only=True)
class LatencyResult(Circumstances):
    """Seconds of each batch, and what they were measured with.

    Attributes:
        latencies_s: from handing over the batch to the end of its last sequence; warm-up batches are not among them.
        workload: the settings, as they took effect.
    """

    latencies_s: tuple[float, ...]
    workload: dict[str, Any] = field(default_factory=dict)

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
            "workload": self.workload,
            **self.circumstances(),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """One row a batch: ``latency_s``."""
        import pandas

        return pandas.DataFrame({"latency_s": self.latencies_s})

    def plot(self) -> Plot:
        """Each batch as a dot, with the median and the spread of the middle 80 %."""
        figure, axes = subplots(7.5, 3.2)
        spread = self.percentiles_s
        axes.axhspan(spread[10], spread[90], color=SKY, alpha=0.25, label="10 % to 90 %")
        axes.axhline(spread[50], color=VERMILION, linestyle="--", label=f"median, {spread[50]:.4g} s")
        axes.plot(range(1, len(self.latencies_s) + 1), self.latencies_s, "o", color=BLUE, label="batches")
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
        return "\n".join([self._workload(), *lines, *self.remarks()])

    def __repr__(self) -> str:
        return f"<{self._batch()}: {self.average_s:.4g} s on average of {len(self.latencies_s)}>"

    def _repr_html_(self) -> str:
        rows = {"average": f"{self.average_s:.4g} s"} | {f"{name} %": f"{value:.4g} s" for name, value in self.percentiles_s.items()}
        return figures_html(rows, [self._workload(), *self.notes, *self.remarks()])

    def _batch(self) -> str:
        sizes = [self.workload.get(name) for name in ("batch_size", "n", "input_len", "output_len")]
        return "{} prompts × {} sequences of {} + {} tokens".format(*sizes)

    def _workload(self) -> str:
        warm_up = self.workload.get("num_iters_warmup")
        return (
            f"topology {self.workload.get('topology')}, without detokenising and HTTP; {self._batch()}, fresh each time, "
            f"seed {self.workload.get('seed')}; {len(self.latencies_s)} batches, {warm_up} before them to warm up, not counted"
        )
