"""Times the choices of answers, for the metrics of the front."""

from __future__ import annotations

import time
from collections import Counter

from mqlab.errors import InvalidRequest, Overloaded
from mqlab.server.metrics.metrics import ServerMetrics
from mqlab.types import Output, SamplingParams


class Meter:
    """Times the choices of one answer, which may have several prompts. A refused one leaves no trace."""

    def __init__(self, metrics: ServerMetrics, params: SamplingParams, prompts: int) -> None:
        self._metrics = metrics
        self._start = time.monotonic()
        self._params = params
        self._open = prompts * params.n
        self._longest: Counter[int] = Counter()
        self._times: dict[int, Times] = {}

    def choice(self, index: int) -> Times:
        """The times of the choice with this index."""
        times = self._times.get(index)
        if times is None:
            times = self._times[index] = Times(self._metrics, self._start)
        return times

    def end(self, index: int, output: Output, now: float) -> None:
        """The choice with this index had an output then, whose tokens are counted; perhaps it was its last, or the request's."""
        if output.finish is not None:
            self._open -= 1
            times = self.choice(index)
            number = index // self._params.n
            self._longest[number] = max(self._longest[number], times.count)
            times.end(output, now)
            if output.usage is not None:
                self._request(output.usage.prompt_tokens, self._longest[number])

    def fail(self, error: Exception) -> None:
        """No more outputs will come, for this reason."""
        if not isinstance(error, InvalidRequest | Overloaded):
            self._metrics.finished["error"] += self._open
        self._open = 0

    def leave(self) -> None:
        """No more outputs are wanted."""
        self._metrics.finished["abort"] += self._open
        self._open = 0

    def _request(self, prompt_tokens: int, longest: int) -> None:
        self._metrics.observe("request_prompt_tokens", prompt_tokens)
        self._metrics.observe("request_max_num_generation_tokens", longest)
        self._metrics.observe("request_params_n", self._params.n)
        if self._params.max_tokens is not None:
            self._metrics.observe("request_params_max_tokens", self._params.max_tokens)


class Times:
    """The times of one choice of an answer that began at ``start``.

    Attributes:
        count: its tokens so far.
    """

    __slots__ = ("_first", "_gap", "_last", "_metrics", "_start", "count")

    def __init__(self, metrics: ServerMetrics, start: float) -> None:
        self._metrics = metrics
        self._start = start
        self._gap = metrics.histograms["inter_token_latency_seconds"].observe
        self._first = self._last = 0.0
        self.count = 0

    def tokens(self, count: int, now: float) -> None:
        """So many came at once, then."""
        if not count:
            return
        if self.count:
            self._gap((now - self._last) / count, count)
        else:
            self._first = now
            self._metrics.observe("time_to_first_token_seconds", now - self._start)
        self._last = now
        self.count += count

    def end(self, output: Output, now: float) -> None:
        """It ended then, with this output."""
        metrics = self._metrics
        metrics.finished[output.finish or "error"] += 1
        metrics.observe("e2e_request_latency_seconds", now - self._start)
        metrics.observe("request_generation_tokens", self.count)
        if self.count > 1:
            metrics.observe("request_time_per_output_token_seconds", (self._last - self._first) / (self.count - 1))
        if output.stats is not None:
            metrics.cost(output.stats, self._last - self._first)
