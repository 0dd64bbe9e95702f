"""What ``mqlab bench serve`` found: figures, judgements, and the forms in which people and programs read them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mqlab.bench.cpu import CpuReport
from mqlab.bench.figures import Timed
from mqlab.bench.load.messages import WorkerLoad
from mqlab.bench.load_options import LoadConfig
from mqlab.bench.options import DatasetConfig
from mqlab.bench.reuse import Reuse, warm_warning
from mqlab.bench.show import foreign_warning
from mqlab.bench.summary import Spread, Steady, spreads, within_limits
from mqlab.record.plot import Plot

if TYPE_CHECKING:
    import pandas

BUSY = 0.9
"""A load process that uses more of a CPU than this may be what was measured."""

SHORT_RATE = 0.95
COARSE_STAMPS_S = 0.01


@dataclass(frozen=True)
class ServeResult:
    """One run of a load against a server.

    Attributes:
        load, dataset: the settings; the dataset's with its seed.
        model: the name that the server was asked for.
        requests: the figures of each, in their order.
        workers: how busy each load process was.
        cpu: who used the processors.
        warm_up_errors: of warm-up requests that failed.
        reuse: what the server's /metrics page counted meanwhile, other clients' requests too; None where it has no such page.
        meta: where it was measured, and when; see ``mqlab.record.metadata.environment``.
    """

    load: LoadConfig
    dataset: DatasetConfig
    url: str
    model: str
    tokenizer: str | None
    requests: Sequence[Timed]
    workers: Sequence[WorkerLoad]
    cpu: CpuReport
    warm_up_errors: Sequence[str] = ()
    reuse: Reuse | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def good(self) -> list[Timed]:
        """Requests that got their answer."""
        return [one for one in self.requests if one.ok]

    @property
    def failed(self) -> int:
        """Requests that did not."""
        return len(self.requests) - len(self.good)

    @cached_property
    def errors(self) -> dict[str, int]:
        """How many failed with each message, most frequent first."""
        return dict(Counter(one.error for one in self.requests if one.error).most_common())

    @cached_property
    def duration(self) -> float:
        """From the start to the end of the last request, in s."""
        return max((one.end_s for one in self.requests), default=0.0) or math.nan

    @property
    def input_tokens(self) -> int:
        """Prompt tokens of answered requests."""
        return sum(one.input_tokens for one in self.good)

    @property
    def output_tokens(self) -> int:
        """New tokens of answered requests."""
        return sum(one.output_tokens for one in self.good)

    @property
    def cached_share(self) -> float | None:
        """Prompt tokens that the server found in its prefix cache / prompt tokens, by its answers' usage or by its counters; None
        where it does not say."""
        said = [one for one in self.good if one.cached_tokens is not None]
        total = sum(one.input_tokens for one in said)
        if total:
            return sum(one.cached_tokens or 0 for one in said) / total
        return self.reuse.cached_share if self.reuse else None

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        """Latencies by name, in ms."""
        return spreads(self.requests, self.load.percentiles)

    @cached_property
    def steady(self) -> Steady | None:
        """Figures of the steady-state window."""
        return Steady.of(self.requests, self.load.percentiles)

    @property
    def goodput(self) -> float | None:
        """Requests/s that kept all limits; None without limits."""
        limits = self.load.limits
        return sum(within_limits(one, limits) for one in self.requests) / self.duration if limits else None

    @property
    def counted_by(self) -> dict[str, int]:
        """Requests by where their token counts come from."""
        return dict(sorted(Counter(one.counted_by for one in self.good).items()))

    @property
    def itl_estimated(self) -> bool:
        """Whether events carried other than one token, so that ITL spreads their gaps over tokens."""
        return not all(one.itl_exact for one in self.good)

    @cached_property
    def start_lag(self) -> tuple[float, float, float]:
        """How late the load generator was, in s: median, 99th percentile, maximum."""
        lags = [one.start_lag for one in self.requests] or [0.0]
        return float(np.median(lags)), float(np.percentile(lags, 99)), max(lags)

    @property
    def timed(self) -> bool:
        """Whether requests had times of their own, rather than all at once."""
        return any(one.due_s > 0 for one in self.requests)

    @property
    def rates(self) -> tuple[float, float]:
        """Arrivals/s as planned and as they were; inf where all came at once."""
        due = max((one.due_s for one in self.requests), default=0.0)
        begun = max((one.due_s + one.start_lag for one in self.requests), default=0.0)
        return (len(self.requests) / due, len(self.requests) / begun) if due > 0 else (math.inf, math.inf)

    @property
    def void(self) -> list[str]:
        """Why the load generator was the limit, so that the figures say nothing about the server; empty for a valid run."""
        limit = self.load.max_start_lag
        reasons = [
            f"load process {one.pid} used {one.share:.0%} of a CPU (limit {BUSY:.0%}): raise --num-workers, or send from another machine"
            for one in self.workers
            if one.share > BUSY
        ]
        if self.timed and self.start_lag[1] > limit:
            late = f"1 % of the requests started more than {self.start_lag[1]:.3f} s late (limit {limit:g} s, --max-start-lag)"
            reasons.append(f"{late}: raise --num-workers, lower the rate, or end other programs ({self.cpu.foreign:.0%} of this machine)")
        return reasons

    @property
    def warnings(self) -> list[str]:
        """What a reader of the figures must know."""
        asked, achieved = self.rates
        told = {
            f"{self.failed} of {len(self.requests)} requests failed": self.failed > 0,
            f"{len(self.warm_up_errors)} warm-up requests failed: {next(iter(self.warm_up_errors), '')}": bool(self.warm_up_errors),
            f"requests started at {achieved:.2f}/s where {asked:.2f}/s were asked for": achieved < SHORT_RATE * asked,
            "events carried more or less than one token: ITL is estimated from gaps and counts, see inter_chunk": self.itl_estimated,
            "token counts are estimated: the server sent no usage and there is no --tokenizer": "events" in self.counted_by,
            "token counts are estimated: the server sent no usage, and text tokenized again may be other tokens than were sent": "tokenizer"
            in self.counted_by,
            "a load process was busy for half a second at a time: short stretches may show it": any(
                one.busiest > BUSY >= one.share for one in self.workers
            ),
            "stamps are coarse: the load processes' loops ran late by more than 10 ms (1 %)": any(
                one.lag_p99_s > COARSE_STAMPS_S for one in self.workers
            ),
        }
        warm = warm_warning(self.cached_share, self.dataset.dataset_name, "the server's")
        return [*(text for text, holds in told.items() if holds), *warm, *foreign_warning(self.cpu.foreign)]

    @property
    def exit_code(self) -> int:
        """0; 1 when every request failed; 3 when the run is void."""
        return 1 if not self.good else 3 if self.void else 0

    def as_record(self, detailed: bool = False) -> dict[str, Any]:
        """For JSON: the keys of ``vllm bench serve``, then ours; ``detailed`` adds the figures of each request."""
        from mqlab.bench.report import record

        return record(self, detailed)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per request; times in s after the start, latencies in s."""
        from mqlab.bench.report import frame

        return frame(self)

    def plot(self) -> Plot:
        """Requests over time, and the distribution of latencies."""
        from mqlab.bench.report import draw

        return Plot(draw(self), repr(self))

    def __str__(self) -> str:
        from mqlab.bench.report import table

        return table(self)

    def __repr__(self) -> str:
        state = "VOID" if self.void else f"{len(self.good)} of {len(self.requests)} requests"
        return f"ServeResult({self.model!r} at {self.url}: {state}, {self.output_tokens / self.duration:.1f} output tokens/s)"

    def _repr_html_(self) -> str:
        from mqlab.bench.report import html

        return html(self)
