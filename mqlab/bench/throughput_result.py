"""What ``mqlab bench throughput`` measured, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mqlab.bench.reuse import warm_warning
from mqlab.bench.show import Circumstances, figures_html
from mqlab.record.plot import BLUE, VERMILION, Plot, subplots

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class ThroughputResult(Circumstances):
    """The whole run's rates, and what they were measured with.

    Attributes:
        elapsed_s: from the first request to the end of the last.
        prompt_tokens, output_tokens: of each request.
        ends_s: when each request ended, after the start.
        warm_up_requests: that ran before, and are in no figure.
        workload, dataset: the settings, as they took effect.
    """

    elapsed_s: float
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    ends_s: tuple[float, ...]
    warm_up_requests: int = 0
    workload: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """What a reader of the figures must know."""
        return [*warm_warning(self.reuse.cached_share, self.dataset.get("dataset_name"), "the engine's"), *super().warnings]

    @property
    def num_requests(self) -> int:
        """Requests, all of which finished."""
        return len(self.output_tokens)

    @property
    def total_tokens(self) -> int:
        """Prompt and new tokens."""
        return sum(self.prompt_tokens) + sum(self.output_tokens)

    @property
    def requests_per_second(self) -> float:
        """Finished requests a second."""
        return self.num_requests / self.elapsed_s

    @property
    def tokens_per_second(self) -> float:
        """Prompt and new tokens a second."""
        return self.total_tokens / self.elapsed_s

    @property
    def output_tokens_per_second(self) -> float:
        """New tokens a second."""
        return sum(self.output_tokens) / self.elapsed_s

    def as_record(self) -> dict[str, Any]:
        """For JSON; the first five names are those of vLLM's ``bench throughput``."""
        return {
            "elapsed_time": self.elapsed_s,
            "num_requests": self.num_requests,
            "total_num_tokens": self.total_tokens,
            "requests_per_second": self.requests_per_second,
            "tokens_per_second": self.tokens_per_second,
            "output_tokens_per_second": self.output_tokens_per_second,
            "warm_up_requests": self.warm_up_requests,
            "input_lens": list(self.prompt_tokens),
            "output_lens": list(self.output_tokens),
            "ends": list(self.ends_s),
            "workload": self.workload,
            "dataset": self.dataset,
            **self.circumstances(),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """One row a request: ``prompt_tokens``, ``output_tokens``, ``end_s``."""
        import pandas

        return pandas.DataFrame({"prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens, "end_s": self.ends_s})

    def plot(self) -> Plot:
        """Finished requests over time, beside the run's mean rate."""
        figure, axes = subplots(7.5, 3.2)
        ends = sorted(self.ends_s)
        axes.step([0, *ends], range(len(ends) + 1), where="post", color=BLUE, label="finished requests")
        axes.plot(
            [0, self.elapsed_s], [0, self.num_requests], "--", color=VERMILION, label=f"mean, {self.requests_per_second:.2f} requests/s"
        )
        axes.set_xlabel("seconds")
        axes.set_ylabel("requests")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="upper left")
        title = f"{self.output_tokens_per_second:.0f} new tokens/s"
        axes.set_title(title, fontsize=10, loc="left")
        return Plot(figure, title)

    def __str__(self) -> str:
        return "\n".join([self._workload(), self._rates(), *self.remarks()])

    def __repr__(self) -> str:
        return f"<{self._rates()}>"

    def _repr_html_(self) -> str:
        rows = {
            "requests/s": f"{self.requests_per_second:.2f}",
            "total tokens/s": f"{self.tokens_per_second:.2f}",
            "output tokens/s": f"{self.output_tokens_per_second:.2f}",
            "elapsed": f"{self.elapsed_s:.2f} s",
        }
        return figures_html(rows, [self._workload(), *self.notes, *self.remarks()])

    def _workload(self) -> str:
        detokenize = "with" if self.workload.get("detokenize") else "without"
        seed = f", seed {self.dataset['seed']}" if "seed" in self.dataset else ""
        return (
            f"topology {self.workload.get('topology')}; {detokenize} detokenising (--detokenize), without HTTP; "
            f"{self.num_requests} requests ({self.dataset.get('dataset_name')}{seed}), "
            f"after {self.warm_up_requests} to warm up, which are not counted"
        )

    def _rates(self) -> str:
        return (
            f"Throughput: {self.requests_per_second:.2f} requests/s, {self.tokens_per_second:.2f} total tokens/s, "
            f"{self.output_tokens_per_second:.2f} output tokens/s"
        )
