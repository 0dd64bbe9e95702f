"""The fronts' part of the /metrics page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import GC_COLLECTOR
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.samples import Sample

from mqlab.server.metrics.counted import DISTRIBUTIONS, HTTP, REJECTIONS, REQUEST_SUCCESS, START, STREAMED, Counts, Distribution
from mqlab.server.metrics.histogram import buckets

_STREAMED_METHOD = "POST"


class FrontPage:
    """Families of what fronts count.

    Args:
        sums: of their tallies.
        prefix: of the names, with its colon.
        labels: of every metric but those of the HTTP server.
        max_model_len: where the buckets of token counts end.
    """

    def __init__(self, sums: Sequence[float], prefix: str, labels: Mapping[str, str], max_model_len: int) -> None:
        self._sums = sums
        self._prefix = prefix
        self._labels = labels
        self._highest = float(max_model_len)

    def families(self) -> Iterator[Metric]:
        """All of them."""
        for one in DISTRIBUTIONS:
            yield self._distribution(one)
        yield self._counts(REQUEST_SUCCESS)
        yield self._counts(REJECTIONS)
        yield from self._http()

    def _distribution(self, one: Distribution) -> Metric:
        start, number = START[one.name], len(one.bounds) + 1
        family = HistogramMetricFamily(self._prefix + one.name, one.help, labels=list(self._labels))
        found = buckets(self._sums[start : start + number], one.bounds, self._highest if one.tokens else float("inf"))
        family.add_metric(list(self._labels.values()), found, self._sums[start + number])
        return family

    def _counts(self, one: Counts) -> Metric:
        family = CounterMetricFamily(self._prefix + one.name, one.help, labels=[*self._labels, *one.labels])
        for values, count in self._of(one).items():
            family.add_metric([*self._labels.values(), *values], count)
        return family

    def _http(self) -> Iterator[Metric]:
        """One with every status, one as servers of other Python frameworks have it. Only what has happened."""
        routes: defaultdict[tuple[str, str], float] = defaultdict(float)
        classes: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        streamed = {(route, _STREAMED_METHOD, status): count for (route, status), count in self._of(STREAMED).items()}
        for table in (streamed, self._of(HTTP)):
            for (handler, method, status), count in table.items():
                if count:
                    routes[handler, status] += count
                    classes[handler, method, f"{status[0]}xx" if status.isdigit() else status] += count
        yield _family(self._prefix + "http_responses", "Answers of the HTTP server by route and status", ("route", "status"), routes)
        yield _family(
            "http_requests", "Answers of the HTTP server by route, method and class of status", ("handler", "method", "status"), classes
        )

    def _of(self, one: Counts) -> dict[tuple[str, ...], float]:
        start = START[one.name]
        return dict(zip(one.values, self._sums[start : start + one.size], strict=True))


def process_families(pids: Mapping[int, int], several: bool = False) -> Iterator[Metric]:
    """The front processes' own CPU time, memory and files, as Prometheus' client has them.

    Args:
        pids: of the fronts, by their index.
        several: the server has more than one: each has the label ``front``, and nothing is told of garbage collection, which one knows
            of oneself only, and who answers changes.
    """
    collected: dict[str, Metric] = {}
    for index, pid in pids.items():
        more = {"front": str(index)} if several else {}
        for family in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():
            merged = collected.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            merged.samples += [Sample(one.name, {**one.labels, **more}, one.value) for one in family.samples]
    yield from collected.values()
    yield from PlatformCollector(registry=None).collect()
    if not several:
        yield from GC_COLLECTOR.collect()


def _family(name: str, text: str, labels: Sequence[str], counts: Mapping[tuple[str, ...], float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in sorted(counts.items()):
        family.add_metric(values, count)
    return family
