"""A trace in a few lines: what it holds, what was lost, what measuring it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from mqlab.record.columns import records

if TYPE_CHECKING:
    from mqlab.record.trace import Trace


def facts_of(trace: Trace) -> list[tuple[str, str]]:
    """Label and value of every line."""
    runs = trace.meta["runs"]
    return [
        ("runs" if len(runs) > 1 else "run", ", ".join(runs)),
        ("duration", f"{trace.seconds:.3f} s"),
        *_requests(trace),
        ("steps", f"{trace.tables['steps'].num_rows:,}"),
        *_edges(trace),
        *_loops(trace),
        *_probes(trace),
        *(("note", note) for note in trace.meta["notes"]),
    ]


def as_text(trace: Trace) -> str:
    """Lines of text."""
    return "\n".join(["Trace", *(f"  {label:<12} {value}" for label, value in facts_of(trace))])


def as_html(trace: Trace) -> str:
    """A table in the theme's colours."""
    left = 'style="text-align:left"'
    rows = "".join(
        f'<tr><td style="text-align:left;opacity:0.75">{escape(label)}</td><td {left}>{escape(value)}</td></tr>'
        for label, value in facts_of(trace)
    )
    return f'<div style="color:var(--jp-content-font-color1, inherit)"><strong>Trace</strong><table style="margin:0">{rows}</table></div>'


def _requests(trace: Trace) -> list[tuple[str, str]]:
    rows = trace.tables["requests"].to_pylist()
    finished = [row for row in rows if row["writer"]]
    ends = ", ".join(f"{count:,} {finish or 'unknown'}" for finish, count in Counter(row["finish"] for row in finished).items())
    open_ones = f", {len(rows) - len(finished):,} not finished" if len(rows) > len(finished) else ""
    tokens = (f"{sum(row[f'{what}_tokens'] or 0 for row in finished):,} {what}" for what in ("prompt", "output"))
    how = f" ({ends})" if ends else ""
    return [("requests", f"{len(finished):,} finished{how}{open_ones}"), ("tokens", ", ".join(tokens))]


def _edges(trace: Trace) -> list[tuple[str, str]]:
    return [
        (
            f"edge {row['edge']}",
            f"{row['sender'] or 'unknown'} → {row['receiver'] or 'unknown'}: messages {max(row['sent'], row['received']):,}, {_lost(row)}",
        )
        for row in records(trace.edges())
    ]


def _lost(row: Mapping[str, Any]) -> str:
    if not (row["sender"] and row["receiver"]):
        return "losses unknown"
    return f"{row['lost']:,} lost or under way" if row["lost"] else "none lost"


def _loops(trace: Trace) -> list[tuple[str, str]]:
    return [
        (
            "loop lag",
            "{writer}: p50 {lag_p50_ms:.2f} ms, p99 {lag_p99_ms:.2f} ms, max {lag_max_ms:.2f} ms; busy {busy:.0%}".format(**row),
        )
        for row in records(trace.loops())
    ]


def _probes(trace: Trace) -> list[tuple[str, str]]:
    costs = trace.probes().groupby("writer", as_index=False)[["cost_ms", "share", "dropped"]].sum()
    return [
        (
            "probe cost",
            f"{row['writer']}: {row['cost_ms']:.2f} ms, {row['share']:.2%} of the time"
            + (f"; {row['dropped']:,} events not written" if row["dropped"] else ""),
        )
        for row in records(costs)
    ]
