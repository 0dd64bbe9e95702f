"""The forms of a serving benchmark's result: record, table, HTML, frame, picture."""

from __future__ import annotations

import html as markup
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from mqlab.bench.summary import Spread, peak_concurrency, peak_token_rate, values_of
from mqlab.record.plot import BLUE, ORANGE, VERMILION, subplots

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mqlab.bench.serve_result import ServeResult

_NAMES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
_WHO = {"self": "the benchmark altogether"}
_SHOWN_ERRORS = 5
_WIDTH = 62


def definitions(result: ServeResult) -> dict[str, str]:
    """How the latencies are defined, in words."""
    since = "when a request was due (no coordinated omission)" if result.load.from_schedule else "when a request was sent"
    return {
        "since": f"ttft and e2el start {since}",
        "tpot": "(last event - first event) / (output tokens - tokens of the first event); requests of one event are left out. With one "
        "token per event this is (latency - ttft) / (output tokens - 1).",
        "itl": "gap between events" + (" / tokens per event, estimated" if result.itl_estimated else ""),
        "inter_chunk": "gap between events, whatever they carry",
        "tokens": "counted by " + ", ".join(f"{source} ({count})" for source, count in result.counted_by.items()),
        "percentiles": "linear interpolation",
        "warm_up": f"{result.load.num_warmups} requests before the run, in no figure",
    }


def record(result: ServeResult, detailed: bool) -> dict[str, Any]:
    """See ``ServeResult.as_record``."""
    latencies: dict[str, Any] = {}
    for name, spread in result.spreads.items():
        latencies |= spread.as_record(name)
    facts = {**_head(result), **result.load.facts, **_totals(result), **latencies, **_ours(result)}
    return facts | (_details(result) if detailed else {})


def _head(result: ServeResult) -> dict[str, Any]:
    load = result.load
    return {
        "date": result.meta.get("date"),
        "endpoint_type": load.backend,
        "backend": load.backend,
        "label": load.label,
        "model_id": result.model,
        "tokenizer_id": result.tokenizer or result.model,
        "num_prompts": len(result.requests),
        "request_rate": _finite(load.request_rate),
        "burstiness": _finite(load.burstiness),
        "max_concurrency": load.max_concurrency,
    }


def _totals(result: ServeResult) -> dict[str, Any]:
    seconds = result.duration
    return {
        "duration": seconds,
        "completed": len(result.good),
        "failed": result.failed,
        "total_input_tokens": result.input_tokens,
        "total_output_tokens": result.output_tokens,
        "request_throughput": len(result.good) / seconds,
        "request_goodput": result.goodput,
        "output_throughput": result.output_tokens / seconds,
        "total_token_throughput": (result.input_tokens + result.output_tokens) / seconds,
        "max_output_tokens_per_s": peak_token_rate(result.requests),
        "max_concurrent_requests": peak_concurrency(result.requests),
    }


def _ours(result: ServeResult) -> dict[str, Any]:
    median, p99, worst = result.start_lag
    asked, achieved = result.rates
    return {
        "success_rate": len(result.good) / max(len(result.requests), 1),
        "error_counts": result.errors,
        "void": result.void,
        "warnings": result.warnings,
        "definitions": definitions(result),
        "itl_estimated": result.itl_estimated,
        "counted_by": result.counted_by,
        "cached_prompt_share": result.cached_share,
        "reuse": msgspec.to_builtins(result.reuse),
        "start_lag_s": {"p50": median, "p99": p99, "max": worst},
        "arrival_rate": {"asked": _finite(asked), "achieved": _finite(achieved)},
        "steady_state": result.steady.as_record() if result.steady else None,
        "cpu": {**result.cpu.as_record(), "load_processes": [_worker(one) for one in result.workers]},
        "ramp_up": _ramp(result),
        "dataset": result.dataset.as_record(),
        "seed": result.dataset.seed,
        "meta": result.meta,
    }


def _worker(one: Any) -> dict[str, Any]:
    return {"pid": one.pid, "cpus_used": one.share, "busiest": one.busiest, "loop_lag_p99_s": one.lag_p99_s}


def _ramp(result: ServeResult) -> dict[str, Any] | None:
    load = result.load
    if load.ramp_up_strategy is None:
        return None
    return {"strategy": load.ramp_up_strategy, "start_rps": load.ramp_up_start_rps, "end_rps": load.ramp_up_end_rps}


def _details(result: ServeResult) -> dict[str, Any]:
    requests = result.requests
    return {
        "input_lens": [one.input_tokens for one in requests],
        "output_lens": [one.output_tokens for one in requests],
        "ttfts": [_number(one.ttft) for one in requests],
        "itls": [one.itl.tolist() for one in requests],
        "start_times": [one.sent_s for one in requests],
        "generated_texts": [one.text for one in requests],
        "errors": [one.error for one in requests],
    }


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def table(result: ServeResult) -> str:
    """For a terminal."""
    lines = [" Serving Benchmark Result ".center(_WIDTH, "=")]
    for title, rows in _sections(result):
        lines += [title.center(_WIDTH, "-")] if title else []
        lines += [f"{name + ':':<44} {value:<10}" for name, value in rows]
    lines += ["=" * _WIDTH, *_remarks(result)]
    return "\n".join(line.rstrip() for line in lines)


def _sections(result: ServeResult) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    yield "", _overview(result)
    for name in result.load.shown_metrics:
        estimated = " (estimated)" if name == "itl" and result.itl_estimated else ""
        yield _NAMES[name] + estimated, _latency_rows(name.upper(), result.spreads[name])
    yield "Time between Events", _latency_rows("inter-chunk", result.spreads["inter_chunk"])
    if result.load.max_concurrency is not None:
        yield "Client Queue Time", _latency_rows("queue", result.spreads["client_queue"])
    if result.steady is not None:
        yield "Steady State", _steady_rows(result)
    yield "Load Generator", _generator_rows(result)


def _overview(result: ServeResult) -> list[tuple[str, str]]:
    totals = _totals(result)
    rows = [
        ("Successful requests", f"{totals['completed']}"),
        ("Failed requests", f"{totals['failed']}"),
        ("Benchmark duration (s)", f"{totals['duration']:.2f}"),
        ("Total input tokens", f"{totals['total_input_tokens']}"),
        ("Total generated tokens", f"{totals['total_output_tokens']}"),
        ("Request throughput (req/s)", f"{totals['request_throughput']:.2f}"),
        ("Request goodput (req/s)", f"{totals['request_goodput'] or 0:.2f}"),
        ("Output token throughput (tok/s)", f"{totals['output_throughput']:.2f}"),
        ("Peak output token throughput (tok/s)", f"{totals['max_output_tokens_per_s']:.2f}"),
        ("Peak concurrent requests", f"{totals['max_concurrent_requests']}"),
        ("Total token throughput (tok/s)", f"{totals['total_token_throughput']:.2f}"),
        ("Prompt tokens from the prefix cache", "not told" if result.cached_share is None else f"{result.cached_share:.1%}"),
        *_guess_rows(result),
    ]
    return [row for row in rows if totals["request_goodput"] is not None or "goodput" not in row[0]]


def _guess_rows(result: ServeResult) -> list[tuple[str, str]]:
    kept = result.reuse.kept_share if result.reuse else None
    return [] if kept is None else [("Guessed tokens that were kept", f"{kept:.1%}")]


def _latency_rows(name: str, spread: Spread) -> list[tuple[str, str]]:
    points = {"Mean": spread.mean, "Median": spread.median, **{key.upper(): value for key, value in spread.percentiles.items()}}
    return [(f"{point} {name} (ms)", "-" if value is None else f"{value:.2f}") for point, value in points.items()]


def _steady_rows(result: ServeResult) -> list[tuple[str, str]]:
    steady = result.steady
    assert steady is not None
    return [
        ("Window (s after the start)", f"{steady.begin_s:.2f} to {steady.end_s:.2f}"),
        ("Output token throughput (tok/s)", f"{steady.output_throughput:.2f}"),
        *_latency_rows("TTFT", steady.ttft)[:2],
        *_latency_rows("TPOT", steady.tpot)[:2],
    ]


def _generator_rows(result: ServeResult) -> list[tuple[str, str]]:
    asked, achieved = result.rates
    lag = " / ".join(f"{1e3 * value:.1f}" for value in result.start_lag)
    return [
        ("Request rate asked / achieved (req/s)", f"{asked:.2f} / {achieved:.2f}"),
        ("Start lag p50 / p99 / max (ms)", lag),
        ("CPUs used by load processes", " + ".join(f"{one.share:.2f}" for one in result.workers)),
        *((f"CPUs used by {_WHO.get(name, name)}", f"{share:.2f}") for name, share in result.cpu.share.items()),
        ("CPUs used by others", f"{result.cpu.foreign:.0%} of {result.cpu.cores}"),
        ("Warm-up requests, in no figure", f"{result.load.num_warmups}"),
        ("Seed", f"{result.dataset.seed}"),
    ]


def _remarks(result: ServeResult) -> Iterator[str]:
    yield f"{definitions(result)['since']}; tpot: {definitions(result)['tpot']}"
    yield from (f"warning: {text}" for text in result.warnings)
    for text, count in list(result.errors.items())[:_SHOWN_ERRORS]:
        yield f"failed {count} times: {text}"
    yield from (f"VOID: {reason}" for reason in result.void)


def html(result: ServeResult) -> str:
    """For a notebook; colours are the theme's."""
    rule = "border-top:1px solid var(--jp-border-color2, #bbb)"
    rows: list[str] = []
    for title, lines in _sections(result):
        rows += [f'<tr><th colspan="2" style="text-align:left;{rule}">{markup.escape(title)}</th></tr>'] if title else []
        rows += [f'<tr><td style="text-align:left">{markup.escape(name)}</td><td>{markup.escape(value)}</td></tr>' for name, value in lines]
    remarks = "".join(f"<li>{markup.escape(text)}</li>" for text in _remarks(result))
    title = f"{'VOID: ' if result.void else ''}{result.model} at {result.url}"
    return (
        f'<div style="color:var(--jp-ui-font-color1, inherit)"><b>{markup.escape(title)}</b>'
        f"<table>{''.join(rows)}</table><ul>{remarks}</ul></div>"
    )


def frame(result: ServeResult) -> pandas.DataFrame:
    """See ``ServeResult.to_pandas``."""
    import pandas

    arrays = ("itl", "inter_chunk", "event_s", "event_tokens")
    rows = [{name: value for name, value in asdict(one).items() if name not in arrays} for one in result.requests]
    return pandas.DataFrame(rows).set_index("index") if rows else pandas.DataFrame()


def draw(result: ServeResult) -> Figure:
    """See ``ServeResult.plot``."""
    figure, (left, right) = subplots(10, 4.2, 1, 2, width_ratios=(3, 2))
    _draw_timeline(left, result)
    _draw_distribution(right, result)
    figure.suptitle(f"{'VOID: ' if result.void else ''}{result.model}, {len(result.good)} of {len(result.requests)} requests", fontsize=11)
    return figure


def _draw_timeline(axes: Axes, result: ServeResult) -> None:
    rows = range(len(result.requests))
    axes.hlines(
        rows, [one.due_s for one in result.requests], [one.end_s for one in result.requests], color=BLUE, lw=0.8, label="due to end"
    )
    first = [(one.event_s[0], row) for row, one in zip(rows, result.requests, strict=True) if len(one.event_s)]
    axes.plot([time for time, _ in first], [row for _, row in first], ".", ms=3, color=ORANGE, label="first token")
    lost = [(one.end_s, row) for row, one in zip(rows, result.requests, strict=True) if not one.ok]
    axes.plot([time for time, _ in lost], [row for _, row in lost], "x", ms=4, color=VERMILION, label="failed")
    if result.steady is not None:
        axes.axvspan(result.steady.begin_s, result.steady.end_s, color="0.5", alpha=0.12, label="steady state")
    axes.set(xlabel="seconds", ylabel="request", xlim=(0, None))
    axes.legend(loc="upper left", frameon=False, fontsize=8)


def _draw_distribution(axes: Axes, result: ServeResult) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    for name, style in (("ttft", "-"), ("tpot", "--"), ("inter_chunk", ":"), ("e2el", "-.")):
        values = values_of(result.requests, name)
        values = values[values == values]
        if len(values):
            axes.ecdf(1e3 * values, label=name, ls=style)
    axes.set(xlabel="ms", ylabel="share at or below", xscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False, fontsize=8)
