"""Times the choices of answers, for the metrics of the front."""

from __future__ import annotations

import time
from collections import Counter

from mqlab.errors import InvalidRequest, Overloaded
from mqlab.server.metrics import ServerMetrics
from mqlab.types import Output, SamplingParams


class Meter:
    """Times the choices of one answer, which may have several prompts. A refused one leaves no trace."""

    def __init__(self, metrics: ServerMetrics, params: SamplingParams, prompts: int) -> None:
        self._metrics = metrics
        self._params = params
        self._start = time.monotonic()
        self._open = prompts * params.n
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._count: Counter[int] = Counter()

    def take(self, index: int, output: Output) -> None:
        """One output of the choice with this index."""
        now = time.monotonic()
        if output.tokens:
            self._tokens(index, len(output.tokens), now)
        if output.finish is not None:
            self._end(index, output.finish, now)
        if output.usage is not None:
            self._request(output.usage.prompt_tokens)

    def fail(self, error: Exception) -> None:
        """No more outputs will come, for this reason."""
        if not isinstance(error, InvalidRequest | Overloaded):
            self._metrics.finished["error"] += self._open
        self._open = 0

    def leave(self) -> None:
        """No more outputs are wanted."""
        self._metrics.finished["abort"] += self._open
        self._open = 0

    def _request(self, prompt_tokens: int) -> None:
        self._metrics.observe("request_prompt_tokens", prompt_tokens)
        self._metrics.observe("request_params_n", self._params.n)
        if self._params.max_tokens is not None:
            self._metrics.observe("request_params_max_tokens", self._params.max_tokens)

    def _tokens(self, index: int, count: int, now: float) -> None:
        if index not in self._first:
            self._first[index] = now
            self._metrics.observe("time_to_first_token_seconds", now - self._start)
        else:
            self._metrics.observe("inter_token_latency_seconds", (now - self._last[index]) / count, count)
        self._last[index] = now
        self._count[index] += count

    def _end(self, index: int, reason: str, now: float) -> None:
        count = self._count[index]
        self._open -= 1
        self._metrics.finished[reason] += 1
        self._metrics.observe("e2e_request_latency_seconds", now - self._start)
        self._metrics.observe("request_generation_tokens", count)
        if count > 1:
            per_token = (self._last[index] - self._first[index]) / (count - 1)
            self._metrics.observe("request_time_per_output_token_seconds", per_token)
