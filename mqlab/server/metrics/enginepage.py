"""The engine's part of the /metrics page: its counters and gauges as it tells them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from mqlab.engine.iterations import BOUNDS
from mqlab.server.metrics.histogram import buckets
from mqlab.types import EngineStats, ModelInfo

_SLEEP = ("awake", "weights_offloaded", "discard_all")
"""vLLM's names of what each level of sleep has given up."""

Rows = Mapping[tuple[str, ...], float]


class EnginePage:
    """Families of one engine.

    Args:
        info: of its model.
        prefix: of the names, with its colon.
        labels: of every metric.
    """

    def __init__(self, info: ModelInfo, prefix: str, labels: Mapping[str, str]) -> None:
        self._info = info
        self._prefix = prefix
        self._labels = labels

    def families(self, stats: EngineStats) -> Iterator[Metric]:
        """All that it tells when it is asked."""
        yield from self._gauges(stats)
        yield from self._requests(stats)
        yield from self._tokens(stats)
        yield from self._guesses(stats)
        yield from self._steps(stats)

    def known(self, up: bool) -> Iterator[Metric]:
        """What one knows without asking it.

        Args:
            up: it lives, and its loop turns.
        """
        yield self._gauge("engine_up", "1 while the engine lives and its loop turns, 0 when it is dead or hangs", up)
        state = -1 if self._info.state == "unloaded" else self._info.sleep_level
        rows = {(name,): float(level == state) for level, name in enumerate(_SLEEP)}
        yield self._table(
            GaugeMetricFamily, "engine_sleep_state", "1 for what the engine has given up; 0 for all without a model", ("sleep_state",), rows
        )
        sizes = {"block_size": str(self._info.block_size), "num_gpu_blocks": str(self._info.num_blocks)}
        yield self._table(
            GaugeMetricFamily, "cache_config_info", "The KV cache's sizes, as labels", tuple(sizes), {tuple(sizes.values()): 1}
        )

    def _gauges(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._gauge("num_requests_running", "Sequences in the running batch", stats.running)
        yield self._gauge("num_requests_waiting", "Sequences that wait for room", stats.waiting)
        reasons = {("capacity",): stats.waiting, ("deferred",): 0}
        text = "Sequences that wait, by why: all for capacity, none is deferred for anything else"
        yield self._table(GaugeMetricFamily, "num_requests_waiting_by_reason", text, ("reason",), reasons)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV blocks in use; 1 is all", stats.kv_usage)

    def _requests(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._counter("num_preemptions", "Sequences put back for want of KV blocks", stats.preemptions)
        ended = {(reason,): count for reason, count in sorted(stats.finished.items())}
        text = "Sequences that ended in the core; what a stop string ends counts as abort here"
        yield self._table(CounterMetricFamily, "engine_finished", text, ("finished_reason",), ended)

    def _tokens(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._counter("prompt_tokens", "Prompt tokens of the requests that came to their first token", stats.prompt_tokens)
        yield self._counter("prompt_tokens_cached", "Those of prompt_tokens that the prefix cache had", stats.cached_tokens)
        sources = {("local_compute",): stats.prompt_tokens - stats.cached_tokens, ("local_cache_hit",): stats.cached_tokens}
        yield self._table(
            CounterMetricFamily, "prompt_tokens_by_source", "prompt_tokens by where their keys and values came from", ("source",), sources
        )
        yield self._counter("generation_tokens", "Tokens generated", stats.generation_tokens)
        yield self._counter("prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache", stats.prefix_queries)
        yield self._counter("prefix_cache_hits", "Prompt tokens that the prefix cache had", stats.prefix_hits)

    def _guesses(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._counter("spec_decode_num_drafts", "How often a sequence's next tokens were guessed", stats.drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Tokens guessed by speculative decoding", stats.drafted)
        yield self._counter("spec_decode_num_accepted_tokens", "Guessed tokens that the model confirmed", stats.accepted)
        places = {(str(place),): count for place, count in enumerate(stats.accepted_at)}
        text = "spec_decode_num_accepted_tokens by place among the guesses, from 0; none without speculative decoding"
        yield self._table(CounterMetricFamily, "spec_decode_num_accepted_tokens_per_pos", text, ("position",), places)

    def _steps(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._counter("engine_steps", "Steps of the engine", stats.steps)
        family = HistogramMetricFamily(
            self._prefix + "iteration_tokens_total", "Tokens that a step ran, of prompts and answers", labels=list(self._labels)
        )
        counts = stats.iteration_tokens or (0,) * (len(BOUNDS) + 1)
        family.add_metric(list(self._labels.values()), buckets(counts, BOUNDS), stats.iteration_tokens_sum)
        yield family
        yield self._counter("device_seconds", "Time that a simulated device was busy", stats.device_us / 1e6)
        yield self._counter("oversleep_seconds", "Time that waits for a simulated device were too long", stats.oversleep_us / 1e6)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        return self._table(GaugeMetricFamily, name, text, (), {(): value})

    def _counter(self, name: str, text: str, value: float) -> Metric:
        return self._table(CounterMetricFamily, name, text, (), {(): value})

    def _table(
        self, kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, text: str, labels: tuple[str, ...], rows: Rows
    ) -> Metric:
        family = kind(self._prefix + name, text, labels=[*self._labels, *labels])
        for values, value in rows.items():
            family.add_metric([*self._labels.values(), *values], float(value))
        return family
