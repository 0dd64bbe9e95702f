"""The tables of a device's benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from mqlab.model.measure.rows import Agreement, Bubble, Ceiling, EngineRate, Skip, Spread, StepTime, Swept, Timed
from mqlab.record.stats import bootstrap_ratio

if TYPE_CHECKING:
    from mqlab.bench.device.result import DeviceResult

Cells = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A title, the names of its columns, and its rows as text."""

    title: str
    head: Cells
    rows: Sequence[Cells]

    def __str__(self) -> str:
        lines = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join([self.title, *("  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)])

    def html(self) -> str:
        """Static, in whatever colours surround it."""
        head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in self.head)
        body = "".join("<tr>" + "".join(f'<td style="text-align:left">{escape(cell)}</td>' for cell in row) + "</tr>" for row in self.rows)
        return f'<table><caption style="text-align:left"><b>{escape(self.title)}</b></caption><tr>{head}</tr>{body}</table>'


def tables(result: DeviceResult) -> list[Table]:
    """Of each part that was measured."""
    made = (_ceilings, _correctness, _kernels, _sweep, _steps, _bubbles, _engines, _skipped)
    return [table for table in (make(result) for make in made) if table.rows]


def _ceilings(result: DeviceResult) -> Table:
    rows = [(row.name, f"{_short(row.value)} {row.unit}", _us(row.time), row.what) for row in result.of(Ceiling)]
    return Table("Ceilings, measured", ("", "at best", "µs [p10, p90]", ""), rows)


def _correctness(result: DeviceResult) -> Table:
    rows = [(row.kernel, row.case, row.dtype, "agrees" if row.ok else "WRONG", _short(row.error), row.note) for row in result.of(Agreement)]
    return Table("Kernels against their references", ("kernel", "case", "dtype", "", "difference, of what is tolerated", ""), rows)


def _kernels(result: DeviceResult) -> Table:
    rows = [
        (
            *(row.kernel, row.case, row.dtype, _us(row.time)),
            _short(row.moved / row.time.median / 1e3),
            _short(row.flops / row.time.median / 1e6) if row.flops else "",
            _percent(result.share(row)),
        )
        for row in result.of(Timed)
    ]
    head = ("kernel", "case", "dtype", "µs [p10, p90]", "GB/s", "TFLOP/s", "of the ceiling")
    return Table("Kernels, nothing of their data in the cache", head, rows)


def _sweep(result: DeviceResult) -> Table:
    rows = [
        (
            *(row.kernel, row.case, f"{row.shipped}: {_us(row.shipped_time)}"),
            "the same" if row.best == row.shipped else f"{row.best}: {_us(row.best_time)}",
            f"{row.best_time.median / row.shipped_time.median:.2f}",
            f"{row.tried}, {len(row.failed)} failed",
        )
        for row in result.of(Swept)
    ]
    return Table("Configs of the attention kernels", ("kernel", "case", "shipped, µs", "best, µs", "best over shipped", "tried"), rows)


def _steps(result: DeviceResult) -> Table:
    head = ("model", "batch", "context", "", "µs [p10, p90]", "of it the device", "over the bandwidth floor")
    return Table("Decode steps, made-up weights", head, [_step(result, row) for row in result.of(StepTime)])


def _step(result: DeviceResult, row: StepTime) -> Cells:
    floor = result.floor_us(row)
    over = "" if floor is None else f"{row.time.median / floor:.2f} x {_short(floor)} µs"
    device = f"{_short(row.device_us)}" if row.device_us else "not known"
    return row.model, str(row.batch), str(row.context), row.mode, _us(row.time), device, over


def _bubbles(result: DeviceResult) -> Table:
    rows = [
        (row.model, str(row.batch), row.planning, str(row.steps), _short(row.period_us), _short(row.device_us), f"{row.idle:.1%}")
        for row in result.of(Bubble)
    ]
    head = ("model", "sequences", "planning", "steps", "µs a step", "of it the device", "the device waits")
    return Table("Bubbles: an engine in a plain loop, with work for every step", head, rows)


def _engines(result: DeviceResult) -> Table:
    return Table(
        "Engines, made-up weights, greedy",
        ("model", "layout", "new tokens/s", "over sync", "ms a token", "µs of CPU a token", "same tokens"),
        [*_engine_rows(result.of(EngineRate))],
    )


def _engine_rows(rates: list[EngineRate]) -> Iterator[Cells]:
    sync = {row.model: row.tokens_per_s for row in rates if row.layout == "sync"}
    for row in rates:
        base = sync.get(row.model, ())
        ratio = str(bootstrap_ratio(row.tokens_per_s, base)) if row.layout != "sync" and len(base) == len(row.tokens_per_s) else ""
        middle = _short(sorted(row.tokens_per_s)[len(row.tokens_per_s) // 2])
        yield row.model, row.layout, middle, ratio, f"{row.tpot_ms:.2f}", f"{row.cpu_us:.1f}", f"{row.same:.0%}"


def _skipped(result: DeviceResult) -> Table:
    return Table("Not measured", ("part", "", "why"), [(row.part, row.name, row.why) for row in result.of(Skip)])


def _us(spread: Spread) -> str:
    return f"{_short(spread.median)} [{_short(spread.low)}, {_short(spread.high)}]"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _short(value: float | None) -> str:
    """Three digits, and thousands apart rather than powers of ten; nothing for none."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
