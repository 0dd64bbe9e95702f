"""The /metrics page: the engine's counters as it tells them, and what the front measures. Names and buckets are vLLM's (0.33).

``request_success`` counts choices as their reader saw them end: a stop string is "stop" here, though the core was told to
abort; "abort" are those whose reader left. The times of a request run from its body's arrival at this process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mqlab.server.histogram import Histogram, one_two_five
from mqlab.types import EngineStats, ModelInfo

_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST_TOKEN_S = (*(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_CHOICES = (1, 2, 5, 10, 20)


class ServerMetrics:
    """What the front has counted since it started. The labels name the model that is loaded when the page is made.

    Args:
        info: of the first model.
    """

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        tokens = one_two_five(info.max_model_len)
        self.finished: Counter[str] = Counter()
        self.responses: Counter[tuple[str, str]] = Counter()
        self.histograms = {
            "time_to_first_token_seconds": Histogram(_FIRST_TOKEN_S),
            "inter_token_latency_seconds": Histogram(_TOKEN_S),
            "request_time_per_output_token_seconds": Histogram(_TOKEN_S),
            "e2e_request_latency_seconds": Histogram(_REQUEST_S),
            "request_prompt_tokens": Histogram(tokens),
            "request_generation_tokens": Histogram(tokens),
            "request_params_n": Histogram(_CHOICES),
            "request_params_max_tokens": Histogram(tokens),
        }

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Count a value in a histogram."""
        self.histograms[name].observe(value, times)

    def page(self, stats: EngineStats | None, info: ModelInfo) -> bytes:
        """The page in Prometheus' text format; without the engine's part where ``stats`` is None."""
        self._info = info
        return generate_latest(_Page([*self._families(), *(self._engine_families(stats) if stats else ())]))

    @property
    def _labels(self) -> dict[str, str]:
        return {"model_name": self._info.name, "engine": "0"}

    def _families(self) -> Iterator[Metric]:
        for name, histogram in self.histograms.items():
            family = HistogramMetricFamily(f"mqlab:{name}", _HELP[name], labels=list(self._labels))
            family.add_metric(list(self._labels.values()), histogram.buckets(), histogram.sum)
            yield family
        success = CounterMetricFamily("mqlab:request_success", "Choices that ended", labels=[*self._labels, "finished_reason"])
        for reason in sorted({"stop", "length", "abort", "error", *self.finished}):
            success.add_metric([*self._labels.values(), reason], self.finished[reason])
        yield success
        responses = CounterMetricFamily("mqlab:http_responses", "Answers of the generating routes", labels=["route", "status"])
        for labels, count in sorted(self.responses.items()):
            responses.add_metric(labels, count)
        yield responses

    def _engine_families(self, stats: EngineStats) -> Iterator[Metric]:
        names, values = list(self._labels), list(self._labels.values())
        gauges = {
            "num_requests_running": (stats.running, "Sequences in the running batch"),
            "num_requests_waiting": (stats.waiting, "Sequences that wait for room"),
            "kv_cache_usage_perc": (stats.kv_usage, "Share of the KV blocks in use; 1 is all"),
        }
        counters = {
            "num_preemptions": (stats.preemptions, "Sequences put back for want of KV blocks"),
            "prompt_tokens": (stats.prompt_tokens, "Prompt tokens processed"),
            "generation_tokens": (stats.generation_tokens, "Tokens generated"),
            "engine_steps": (stats.steps, "Steps of the engine"),
            "prefix_cache_queries": (stats.prefix_queries, "Prompt tokens that were looked up in the prefix cache"),
            "prefix_cache_hits": (stats.prefix_hits, "Prompt tokens that the prefix cache had"),
            "spec_decode_num_draft_tokens": (stats.drafted, "Tokens guessed by speculative decoding"),
            "spec_decode_num_accepted_tokens": (stats.accepted, "Guessed tokens that the model confirmed"),
            "device_seconds": (stats.device_us / 1e6, "Time that a simulated device was busy"),
            "oversleep_seconds": (stats.oversleep_us / 1e6, "Time that waits for a simulated device were too long"),
        }
        for kind, table in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, (value, text) in table.items():
                family = kind(f"mqlab:{name}", text, labels=names)
                family.add_metric(values, value)
                yield family
        yield self._engine_finished(stats)
        yield self._cache_config()

    def _engine_finished(self, stats: EngineStats) -> Metric:
        family = CounterMetricFamily("mqlab:engine_finished", "Sequences that ended in the core", labels=[*self._labels, "finished_reason"])
        for reason, count in sorted(stats.finished.items()):
            family.add_metric([*self._labels.values(), reason], count)
        return family

    def _cache_config(self) -> Metric:
        sizes = {"block_size": str(self._info.block_size), "num_gpu_blocks": str(self._info.num_blocks)}
        family = GaugeMetricFamily("mqlab:cache_config_info", "The KV cache's sizes, as labels", labels=[*self._labels, *sizes])
        family.add_metric([*self._labels.values(), *sizes.values()], 1)
        return family


_HELP = {
    "time_to_first_token_seconds": "From the request's arrival to the first token of each choice",
    "inter_token_latency_seconds": "Time between tokens; several that come at once share the time since the last",
    "request_time_per_output_token_seconds": "Mean time per token after the first, by choice",
    "e2e_request_latency_seconds": "From the request's arrival to the end of each choice",
    "request_prompt_tokens": "Prompt tokens, by finished request",
    "request_generation_tokens": "Generated tokens, by finished choice",
    "request_params_n": "Choices asked for, by finished request",
    "request_params_max_tokens": "max_tokens asked for, by finished request that named one",
}


class _Page(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
