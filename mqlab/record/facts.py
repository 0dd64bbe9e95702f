"""What a trace's tables say, worked out: latencies, shares of a step, rates, lags, the probes' own cost. All are DataFrames."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from mqlab.record.columns import Columns, by_writer, columns, records, where
from mqlab.record.stats import concurrency, percentiles

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

    from mqlab.record.trace import Trace

PARTS = ("schedule", "launch", "device", "sample", "output")
"""Parts of an engine step in their order."""

BETWEEN = ("gap", "idle")
"""Time in no part: while a request was with the engine, and while none was."""


def latency(trace: Trace) -> pandas.DataFrame:
    """One row a request that the front has seen end, in the order of arrival.

    Columns: ``run``, ``id``, ``arrived_s``, ``prompt_tokens``, ``output_tokens``, ``finish``, and in ms ``queue_ms`` (engine: added to
    scheduled), ``ttft_ms``, ``tpot_ms`` ((last - first) / (tokens - 1), absent for one token), ``e2el_ms``, ``itl_max_ms`` (longest
    time between deltas). A failed or aborted request is in it: look at ``finish``.
    """
    frame = trace.to_pandas("requests").dropna(subset=["writer"]).reset_index(drop=True)
    longest = [max(gaps) if gaps is not None and len(gaps) else math.nan for gaps in frame["itl_ms"]]
    columns = ["run", "id", "arrived_s", "prompt_tokens", "output_tokens", "finish", "queue_ms", "ttft_ms", "tpot_ms", "e2el_ms"]
    return frame.assign(itl_max_ms=longest).filter([*columns, "itl_max_ms"])


def step_ends(steps: Columns) -> np.ndarray:
    """The earliest that each step can have ended, in ns: its begin and its parts added up. Only the begin is stamped, and between
    launching and the device's end an engine may do what no part counts: send, take input."""
    return steps["stamp_ns"] + np.sum([steps[f"{part}_ns"] for part in PARTS], axis=0)


def steps(trace: Trace) -> pandas.DataFrame:
    """Where the engines' time went, from the first step's begin to the last one's end: one row a part of each engine.

    Columns: ``run``, ``writer``, ``part`` (schedule, launch, device, sample, output; then the time in no part: ``gap`` while a request
    was with the engine, ``idle`` while none was), ``steps``, ``total_ms``, ``mean_us``, ``p50_us``, ``p99_us`` (of a step, or of
    the time between two), ``share`` (of the whole time). Shares add up to 1 unless steps overlap. A gap holds the engine's loop with its
    sockets, also what it sends and receives while the device works. Whether a request was with the engine is known only where
    requests were recorded; without any, all time in no part is ``gap``.
    """
    import pandas as pd

    names = ["run", "writer", "part", "steps", "total_ms", "mean_us", "p50_us", "p99_us", "share"]
    rows = [
        {"run": run, "writer": writer, **row}
        for run, writer, found in by_writer(trace.tables["steps"])
        for row in _step_rows(found, where(trace.tables["requests"], run=run))
    ]
    return pd.DataFrame(rows, columns=names)


def _step_rows(steps: Columns, requests: pa.Table) -> Iterator[dict[str, Any]]:
    begins, ends = steps["stamp_ns"], step_ends(steps)
    whole = int(ends.max() - begins.min())
    between = np.maximum(begins[1:] - ends[:-1], 0)
    busy = np.minimum(_with_engine(ends[:-1], begins[1:], requests), between)
    series = {**{part: steps[f"{part}_ns"] for part in PARTS}, "gap": busy, "idle": between - busy}
    for part, values in series.items():
        total, middle = int(values.sum()), percentiles(values / 1e3, (50, 99))
        yield {
            "part": part,
            "steps": len(begins),
            "total_ms": total / 1e6,
            "mean_us": total / len(values) / 1e3 if len(values) else math.nan,
            **{f"{name}_us": value for name, value in middle.items()},
            "share": total / whole if whole else math.nan,
        }


def _with_engine(begins: np.ndarray, ends: np.ndarray, requests: pa.Table) -> np.ndarray:
    """How much of each stretch a request was with the engine, in ns; all of it where no request was recorded."""
    spans = [
        (row["added_ns"] or row["arrived_ns"], (row["last_ns"] or row["arrived_ns"]) if row["writer"] else np.inf)
        for row in requests.to_pylist()
    ]
    if not spans or not len(begins):
        return np.maximum(ends - begins, 0)
    origin = int(begins[0])
    starts, stops = (np.array([float(moment - origin) for moment in side]) for side in zip(*spans, strict=True))
    times, running = concurrency(starts, np.maximum(starts, stops))
    times = np.append(times, max(times[-1], float(ends[-1] - origin)))
    covered = np.concatenate(([0.0], np.cumsum(np.diff(times) * (running > 0))))
    low, high = (np.interp(moments - origin, times, covered) for moments in (begins, ends))
    return np.maximum(high - low, 0).round().astype(np.int64)


def throughput(trace: Trace, interval: float = 1.0) -> pandas.DataFrame:
    """Rates in intervals of so many seconds from the trace's start.

    Columns: ``seconds`` (where the interval begins), ``steps_per_s`` and ``new_tokens_per_s`` (from the engine's steps),
    ``output_tokens_per_s`` (from the deltas at the front), ``arrived_per_s``, ``finished_per_s``, ``running`` (requests arrived and not
    ended at its begin). Columns of requests know only those that have ended. The last interval may be cut short by the trace's end:
    its rates are over the time that it has.

    Raises:
        ValueError: the interval is not above 0.
    """
    import pandas as pd

    if not interval > 0:
        raise ValueError(f"interval={interval} must be above 0 seconds")
    length = max(trace.seconds, 1e-9)
    edges = np.append(np.arange(0, length, interval), length)
    finished = [row for row in trace.tables["requests"].to_pylist() if row["writer"]]
    arrived, last, deltas = ([row[name] for row in finished] for name in ("arrived_ns", "last_ns", "token_ns"))
    ended = [stamp for stamp in last if stamp is not None]

    def rate(stamps: Any, weights: Any = None) -> np.ndarray:
        return np.histogram(_seconds(trace, stamps), edges, weights=weights)[0] / np.diff(edges)

    made = columns(trace.tables["steps"])
    tokens = [count for row in finished for count in row["token_counts"]]
    begun, over = (_seconds(trace, stamps) for stamps in (arrived, ended))
    return pd.DataFrame(
        {
            "seconds": edges[:-1],
            "steps_per_s": rate(made["stamp_ns"]),
            "new_tokens_per_s": rate(made["stamp_ns"], made["new_tokens"]),
            "output_tokens_per_s": rate(list(chain(*deltas)), tokens),
            "arrived_per_s": rate(arrived),
            "finished_per_s": rate(ended),
            "running": [int((begun <= begin).sum() - (over <= begin).sum()) for begin in edges[:-1]],
        }
    )


def _seconds(trace: Trace, stamps: Any) -> np.ndarray:
    return (np.asarray(stamps, dtype=np.int64) - trace.start_ns) / 1e9


def loops(trace: Trace) -> pandas.DataFrame:
    """One row an event loop.

    Columns: ``run``, ``writer``, ``ticks``, the lag of its ticks ``lag_p50_ms``, ``lag_p99_ms``, ``lag_max_ms``, and ``busy``, the share
    of the time in which its thread had a CPU.
    """
    import pandas as pd

    rows = []
    for run, writer, ticks in by_writer(trace.tables["loop"]):
        lag = percentiles(ticks["lag_ns"] / 1e6, (50, 99, 100))
        wall = ticks["interval_ns"].sum()
        busy = float(ticks["busy_ns"].sum() / wall) if wall else math.nan
        rows.append((run, writer, len(ticks["lag_ns"]), lag["p50"], lag["p99"], lag["p100"], busy))
    return pd.DataFrame(rows, columns=["run", "writer", "ticks", "lag_p50_ms", "lag_p99_ms", "lag_max_ms", "busy"])


def probes(trace: Trace) -> pandas.DataFrame:
    """One row a probe.

    Columns: ``run``, ``writer``, ``probe``, ``events``, ``cost_ms``, ``dropped`` (events not written), ``share`` (cost over the time of
    the run, NaN where that has no length).
    """
    import pandas as pd

    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for row in trace.tables["counters"].to_pylist():
        match row["name"].split("."):
            case ["probe", *middle, what] if middle:
                found.setdefault((row["run"], row["writer"], ".".join(middle)), {})[what] = row["value"]
    rows = [(*key, *_probe_cost(trace.runs[key[0]], counts)) for key, counts in sorted(found.items())]
    return pd.DataFrame(rows, columns=["run", "writer", "probe", "events", "cost_ms", "dropped", "share"])


def _probe_cost(span: tuple[int, int], counts: Mapping[str, int]) -> tuple[int, float, int, float]:
    start, end = span
    cost = counts.get("ns", 0)
    return counts.get("events", 0), cost / 1e6, counts.get("dropped", 0), cost / (end - start) if end > start else math.nan


def overhead(trace: Trace) -> dict[str, dict[str, float]]:
    """Share of its run's time that all probes of a writer took together, by run and writer."""
    shares: dict[str, dict[str, float]] = {}
    for row in records(probes(trace).dropna(subset=["share"])):
        writers = shares.setdefault(row["run"], {})
        writers[row["writer"]] = writers.get(row["writer"], 0.0) + row["share"]
    return shares


def in_order(ends: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """Number of the message that carried each step, -1 where there is none: the first sent after its end that no step before took.

    A step's end is known only from below, so without the second rule a step would take its predecessor's message.
    """
    first = np.searchsorted(sent, ends)
    index, taken = np.full(len(ends), -1, dtype=np.int64), -1
    for step, message in enumerate(first.tolist()):
        taken = max(message, taken + 1)
        if taken >= len(sent):
            break
        index[step] = taken
    return index
