"""What a front counts while it serves. The /metrics page shows the sums over all fronts.

``request_success`` counts choices as their reader saw them end: a stop string is "stop" here, though the core was told to
abort; "abort" are those whose reader left. The times of a request run from its body's arrival at this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mqlab.server.metrics.counted import DIGEST, DISTRIBUTIONS, HTTP, OTHER, REJECTIONS, REQUEST_SUCCESS, SIZE, START, STREAMED, Counts
from mqlab.server.metrics.histogram import Histogram
from mqlab.server.metrics.tally import SharedTally, Tally, Words
from mqlab.types import RequestStats


class Cells:
    """The counts of one counter by their labels: ``cells[label] += 1``. Where a label is not known, ``other`` takes its place, if there is
    one, or it is not counted.
    """

    def __init__(self, words: Words, counts: Counts) -> None:
        self._words = words
        self._places = {labels: START[counts.name] + number for number, labels in enumerate(counts.values)}
        self._known = [frozenset(column) for column in zip(*counts.values, strict=True)]

    def __getitem__(self, labels: str | tuple[str, ...]) -> float:
        place = self._place(labels)
        return 0.0 if place is None else self._words[place]

    def __setitem__(self, labels: str | tuple[str, ...], count: float) -> None:
        if (place := self._place(labels)) is not None:
            self._words[place] = count

    def _place(self, labels: str | tuple[str, ...]) -> int | None:
        key = (labels,) if isinstance(labels, str) else labels
        place = self._places.get(key)
        if place is None:
            place = self._places.get(tuple([one if one in known else OTHER for one, known in zip(key, self._known, strict=True)]))
        return place


class ServerMetrics:
    """The counts of one front.

    Args:
        folder: where it keeps them, for the pages of its siblings; None keeps them in memory.
        index: of this front among those.

    Attributes:
        tally: where they are.
        finished: choices by how they ended.
        rejections: refused calls by reason.
        responses: answers of the streaming routes by route and status.
        http: answers of all other routes by handler, method and status.
        histograms: by name.
    """

    def __init__(self, folder: Path | None = None, index: int = 0) -> None:
        self.tally = Tally(SIZE) if folder is None else SharedTally(SIZE, DIGEST, folder, index)
        words = self.tally.words
        self.finished = Cells(words, REQUEST_SUCCESS)
        self.rejections = Cells(words, REJECTIONS)
        self.responses = Cells(words, STREAMED)
        self.http = Cells(words, HTTP)
        self.histograms = {one.name: Histogram(words, START[one.name], one.bounds) for one in DISTRIBUTIONS}

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Count a value in a histogram."""
        self.histograms[name].observe(value, times)

    def cost(self, stats: RequestStats, decode_s: float) -> None:
        """What a choice that has ended has cost the engine.

        Args:
            decode_s: from its first token to its end as its reader saw it, for the engine has not seen the end of what a stop string ends.
        """
        decode_s = stats.decode_s or decode_s
        self.observe("request_queue_time_seconds", stats.queued_s)
        self.observe("request_prefill_time_seconds", stats.prefill_s)
        self.observe("request_decode_time_seconds", decode_s)
        self.observe("request_inference_time_seconds", stats.prefill_s + decode_s)
        self.observe("request_prefill_kv_computed_tokens", stats.prompt_tokens - stats.cached_tokens)
        self.observe("request_num_preemptions", stats.preemptions)

    def sums(self) -> Sequence[float]:
        """All words, over all fronts; ``counted`` says what each is."""
        return self.tally.sums()
