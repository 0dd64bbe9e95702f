"""From the figures of all requests to those of a run. Pure functions; names and units are those of ``vllm bench serve``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mqlab.bench.figures import Timed
from mqlab.bench.load_options import METRICS
from mqlab.record.stats import concurrency, steady_window


@dataclass(frozen=True)
class Spread:
    """How a latency is distributed, in ms; all None where nothing was measured."""

    mean: float | None
    median: float | None
    std: float | None
    percentiles: dict[str, float | None]

    @classmethod
    def of(cls, seconds: np.ndarray, percentiles: Iterable[float]) -> Spread:
        """Of values in s; NaN are left out. Percentiles by linear interpolation."""
        ms = 1e3 * seconds[~np.isnan(seconds)]

        def value(function: Callable[[np.ndarray], Any]) -> float | None:
            return float(function(ms)) if ms.size else None

        points = {f"p{q:g}": value(lambda x, q=q: np.percentile(x, q)) for q in percentiles}
        return cls(value(np.mean), value(np.median), value(np.std), points)

    def as_record(self, name: str) -> dict[str, float | None]:
        """``mean_NAME_ms`` and so on."""
        points = {"mean": self.mean, "median": self.median, "std": self.std, **self.percentiles}
        return {f"{point}_{name}_ms": value for point, value in points.items()}


def values_of(requests: Sequence[Timed], metric: str) -> np.ndarray:
    """A metric of all requests that got their answer, in s, float64: one value per request, or per gap (itl, inter_chunk)."""
    good = [getattr(one, metric) for one in requests if one.ok]
    return np.concatenate([np.atleast_1d(value) for value in good]) if good else np.empty(0)


def spreads(requests: Sequence[Timed], percentiles: Iterable[float]) -> dict[str, Spread]:
    """Every latency of a run."""
    wanted = tuple(percentiles)
    return {name: Spread.of(values_of(requests, name), wanted) for name in (*METRICS, "inter_chunk", "ttft_sent", "client_queue")}


def peak_concurrency(requests: Sequence[Timed]) -> int:
    """Most requests under way at one moment, from when each was sent to when it was over."""
    sent = [one for one in requests if one.end_s > one.sent_s]
    return int(concurrency([one.sent_s for one in sent], [one.end_s for one in sent])[1].max()) if sent else 0


def peak_token_rate(requests: Sequence[Timed]) -> float:
    """Most output tokens in one second of the run; seconds are counted from its start."""
    good = [one for one in requests if one.ok and len(one.event_s)]
    if not good:
        return 0.0
    seconds = np.concatenate([one.event_s for one in good]).astype(int)
    return float(np.bincount(seconds, weights=np.concatenate([one.event_tokens for one in good])).max())


def within_limits(request: Timed, limits: dict[str, float]) -> bool:
    """Whether it got its answer within the limits, in ms by metric. What a request cannot have (TPOT of one event) is within."""
    return request.ok and not any(1e3 * getattr(request, name) > limit for name, limit in limits.items())


@dataclass(frozen=True)
class Steady:
    """A run without its ramp-up and drain, see ``mqlab.record.stats.steady_window``.

    Attributes:
        begin_s, end_s: after the start.
        completed: requests whose answer was over within it.
        output_throughput: output tokens/s within it.
        ttft, tpot: in ms, of requests that were sent within it.
    """

    begin_s: float
    end_s: float
    completed: int
    output_throughput: float
    ttft: Spread
    tpot: Spread

    @classmethod
    def of(cls, requests: Sequence[Timed], percentiles: Iterable[float]) -> Steady | None:
        """None where no request got its answer, or the window has no length."""
        good = [one for one in requests if one.ok]
        if not good:
            return None
        begin, end = steady_window([one.sent_s for one in good], [one.end_s for one in good])
        if end <= begin:
            return None
        tokens = sum(float(one.event_tokens[(one.event_s >= begin) & (one.event_s < end)].sum()) for one in good)
        inside = [one for one in good if begin <= one.sent_s < end]
        found, completed = spreads(inside, tuple(percentiles)), sum(begin <= one.end_s < end for one in good)
        return cls(begin, end, completed, tokens / (end - begin), found["ttft"], found["tpot"])

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        length = self.end_s - self.begin_s
        return {
            "begin_s": self.begin_s,
            "end_s": self.end_s,
            "request_throughput": self.completed / length,
            "output_throughput": self.output_throughput,
            **self.ttft.as_record("ttft"),
            **self.tpot.as_record("tpot"),
        }
