"""From stamps to latencies: the arithmetic of one request. Pure functions of what was recorded.

    ttft   from when the request was due (or sent: ``LoadConfig.from_schedule``) to the first event with new tokens
    e2el   from the same moment to the last event with new tokens
    tpot   (last event - first event) / (output tokens - tokens of the first event); where each event carries one token this is
           (e2el - ttft) / (output tokens - 1), the definition of ``vllm bench serve``. Requests with a single event have none.
    itl    gap between events / tokens per event; exact where each event carries one token, otherwise an estimate, and flagged
    inter_chunk  gap between events, whatever they carry

Output tokens are the server's own count (usage); without one, ids that events carry, then the tokenizer's count of the text, then
the number of events, which is flagged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mqlab.bench.load.messages import Record

CountedBy = Literal["usage", "ids", "tokenizer", "events"]
CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Timed:
    """The figures of one request, in s. Those of a failed one are NaN and empty.

    Attributes:
        input_tokens: the server's count, or the sample's where it sent none.
        counted_by: where ``output_tokens`` comes from; "events" is an estimate.
        due_s, sent_s, end_s: after the start of the run.
        start_lag: how late the load generator was, before it held the request back for ``max_concurrency``.
        client_queue: how long it held it back.
        ttft_sent: time to first token from when it was sent, whatever ``ttft`` starts from.
        itl: one value per gap between events.
        itl_exact: each event carried one token.
        event_s: when each event with new tokens came, after the start of the run.
        event_tokens: tokens of each event; estimated evenly where the server does not say.
    """

    index: int
    error: str
    text: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int | None
    counted_by: CountedBy
    due_s: float
    sent_s: float
    end_s: float
    start_lag: float
    client_queue: float
    ttft: float
    ttft_sent: float
    tpot: float
    e2el: float
    itl: np.ndarray
    itl_exact: bool
    inter_chunk: np.ndarray
    event_s: np.ndarray
    event_tokens: np.ndarray

    @property
    def ok(self) -> bool:
        """Whether it got its whole answer."""
        return not self.error


def measure(
    record: Record, start_ns: int, *, from_schedule: bool, prompt_tokens: int = 0, count_tokens: CountTokens | None = None
) -> Timed:
    """The figures of one record.

    Args:
        start_ns: when the run began.
        from_schedule: latencies start when the request was due, not when it was sent.
        prompt_tokens: for a server that sends no usage.
        count_tokens: of a text, for a server that sends no usage; None where there is no tokenizer.
    """
    events = np.asarray(record.event_ns if not record.error else [], dtype=np.int64)
    output, counted_by = (0, "usage") if record.error else _count(record, count_tokens)
    tokens = _tokens_per_event(record, output, len(events))
    gaps = np.diff(events) / 1e9
    since = record.due_ns if from_schedule else record.sent_ns
    return Timed(
        index=record.index,
        error=record.error,
        text=record.text,
        input_tokens=prompt_tokens if record.prompt_tokens is None else record.prompt_tokens,
        output_tokens=output,
        cached_tokens=record.cached_tokens,
        counted_by=counted_by,
        due_s=_seconds(start_ns, record.due_ns),
        sent_s=_seconds(start_ns, record.sent_ns),
        end_s=_seconds(start_ns, record.end_ns),
        start_lag=_seconds(record.due_ns, record.woken_ns),
        client_queue=_seconds(record.woken_ns, record.sent_ns),
        ttft=_seconds(since, events[0]) if len(events) else np.nan,
        ttft_sent=_seconds(record.sent_ns, events[0]) if len(events) else np.nan,
        tpot=_tpot(events, output, tokens),
        e2el=_seconds(since, events[-1]) if len(events) else np.nan,
        itl=gaps / tokens[1:],
        itl_exact=bool((tokens == 1).all()),
        inter_chunk=gaps,
        event_s=(events - start_ns) / 1e9,
        event_tokens=tokens,
    )


def _count(record: Record, count_tokens: CountTokens | None) -> tuple[int, CountedBy]:
    some = record.output_tokens or len(record.event_ns) < 2  # servers that do not count send zeros, whatever they said
    if record.output_tokens is not None and some:
        return record.output_tokens, "usage"
    if record.event_tokens:
        return sum(record.event_tokens), "ids"
    if count_tokens is not None:
        return count_tokens(record.text), "tokenizer"
    return len(record.event_ns), "events"


def _tokens_per_event(record: Record, output: int, events: int) -> np.ndarray:
    """Float64 [events]; where the server does not say: one each if there are as many tokens, otherwise evenly."""
    if record.event_tokens and not record.error:
        return np.asarray(record.event_tokens, dtype=float)
    return np.full(events, output / events if events and output else 1.0)


def _tpot(events: np.ndarray, output: int, tokens: np.ndarray) -> float:
    if len(events) < 2:
        return np.nan
    first = tokens[0] if (tokens != tokens[0]).any() else max(1, round(tokens[0]))
    rest = output - first
    return float(events[-1] - events[0]) / 1e9 / rest if rest > 0 else np.nan


def _seconds(start_ns: int, end_ns: int | np.int64) -> float:
    return float(int(end_ns) - start_ns) / 1e9
