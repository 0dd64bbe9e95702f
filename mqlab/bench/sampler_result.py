"""What ``mqlab bench sampler`` measured, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mqlab.bench.show import Circumstances, figures_html
from mqlab.record.plot import BLUE, Plot, subplots

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class SamplerResult(Circumstances):
    """Microseconds of the sampler by kind of batch, and what they were measured with.

    Attributes:
        median_us: of one call; ``mixed`` takes all kinds in turns, every other batch is of one kind.
        step_us: of a decode step of a model, its sampler left out; None where none was asked for.
        workload: the settings, as they took effect.
        kinds: what each kind asks for, in words.
    """

    median_us: dict[str, float]
    step_us: float | None = None
    workload: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """A mixed batch over a greedy one."""
        return self.median_us["mixed"] / self.median_us["greedy"]

    @property
    def step_ratio(self) -> float | None:
        """The same of whole decode steps, from what model and sampler take apart."""
        if self.step_us is None:
            return None
        return (self.step_us + self.median_us["mixed"]) / (self.step_us + self.median_us["greedy"])

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "median_us": self.median_us,
            "mixed_over_greedy": self.ratio,
            "step_us": self.step_us,
            "step_mixed_over_greedy": self.step_ratio,
            "kinds": self.kinds,
            "workload": self.workload,
            **self.circumstances(),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """One row a kind: ``us``, ``us_per_row``, ``over_greedy``."""
        import pandas

        return pandas.DataFrame.from_dict(
            {name: self._figures(name) for name in self.median_us}, orient="index", columns=["us", "us_per_row", "over_greedy"]
        )

    def plot(self) -> Plot:
        """A bar for each kind."""
        figure, axes = subplots(7.5, 0.8 + 0.35 * len(self.median_us))
        names = list(self.median_us)[::-1]
        bars = axes.barh(names, [self.median_us[name] for name in names], color=BLUE)
        axes.bar_label(bars, [f" {self.median_us[name]:.0f}" for name in names])
        axes.margins(x=0.12)
        axes.set_xlabel("µs a call")
        title = f"{self._batch()}: mixed over greedy {self.ratio:.2f}"
        axes.set_title(title, fontsize=10, loc="left")
        return Plot(figure, title)

    def __str__(self) -> str:
        width = max(map(len, self.median_us))
        lines = [f"{'':{width}}  {'µs':>8}  {'µs a row':>8}  {'× greedy':>8}"]
        for name in self.median_us:
            total, each, ratio = self._figures(name)
            lines.append(f"{name:{width}}  {total:8.0f}  {each:8.2f}  {ratio:8.2f}  {self.kinds.get(name, '')}".rstrip())
        return "\n".join([self._workload(), *lines, *self._verdict(), *self.warned()])

    def __repr__(self) -> str:
        return f"<sampler, {self._batch()}: mixed over greedy {self.ratio:.2f}>"

    def _repr_html_(self) -> str:
        figures = {name: f"{self.median_us[name]:.0f} µs, {self._figures(name)[2]:.2f} × greedy" for name in self.median_us}
        return figures_html(figures, [self._workload(), *self._verdict(), *self.notes, *self.warned()])

    def _figures(self, name: str) -> tuple[float, float, float]:
        total = self.median_us[name]
        return total, total / self.workload["batch_size"], total / self.median_us["greedy"]

    def _verdict(self) -> list[str]:
        lines = [f"mixed over greedy: {self.ratio:.2f}, the sampler alone"]
        if self.step_us is not None:
            step = f"a step of {self.workload['model']} takes {self.step_us / 1000:.1f} ms without it"
            lines.append(f"mixed over greedy: {self.step_ratio:.3f} of a whole decode step, as {step}")
        return lines

    def _batch(self) -> str:
        return "{batch_size} rows of {vocab_size} logits".format(**self.workload)

    def _workload(self) -> str:
        return (
            f"sampler, {self._batch()}, {self.workload['num_threads']} threads, seed {self.workload['seed']}; "
            f"medians of {self.workload['num_iters']} rounds, in each of which every batch has its turn"
        )
