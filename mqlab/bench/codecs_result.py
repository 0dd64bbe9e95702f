"""What ``mqlab bench codecs`` measured, and how it is shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mqlab.bench.output import read_output
from mqlab.bench.show import Circumstances
from mqlab.record.plot import BLUE, VERMILION, Plot, subplots
from mqlab.record.stats import Interval, bootstrap_ci, bootstrap_ratio

if TYPE_CHECKING:
    import pandas

_HEAD = ("codec", "output", "requests", "bytes", "encode µs", "decode µs")
_WIDTHS = (8, 10, 8, 9, 24, 24)
_STYLES = {"msgpack": (BLUE, "o"), "pickle": (VERMILION, "s")}
_LINES = {"delta": "-", "cumulative": "--"}


@dataclass(frozen=True)
class Row:
    """Messages of one kind.

    Attributes:
        batch: requests of a step.
        bytes: of the message in which every request has as many tokens as the workload says.
        encode_us: to make one, the median of each round; decode_us: to read it, likewise.
    """

    codec: str
    output: str
    batch: int
    bytes: int
    encode_us: tuple[float, ...]
    decode_us: tuple[float, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """As text, in the order of the columns."""
        return self.codec, self.output, str(self.batch), f"{self.bytes:,}", str(self.make), str(self.read)

    @property
    def both_us(self) -> list[float]:
        """To make and to read one, round by round."""
        return [sum(both) for both in zip(self.encode_us, self.decode_us, strict=True)]

    @property
    def make(self) -> Interval:
        """µs to make one: the median over the rounds, with its interval."""
        return bootstrap_ci(self.encode_us)

    @property
    def read(self) -> Interval:
        """µs to read one, likewise."""
        return bootstrap_ci(self.decode_us)

    @property
    def cost(self) -> Interval:
        """µs of both, likewise."""
        return bootstrap_ci(self.both_us)


@dataclass(frozen=True, kw_only=True)
class CodecsResult(Circumstances):
    """Bytes and microseconds of a step's message, by codec, by what it carries and by how many requests it is for.

    Attributes:
        workload: the settings, as they took effect.
    """

    rows: tuple[Row, ...]
    workload: dict[str, Any] = field(default_factory=dict)

    def row(self, codec: str, output: str, batch: int) -> Row:
        """One kind of message. Raises KeyError where it was not measured."""
        return {(one.codec, one.output, one.batch): one for one in self.rows}[codec, output, batch]

    def ratio(self, over: tuple[str, str], under: tuple[str, str], batch: int) -> Interval:
        """How many times the time of ``under``, a codec and an output, that of ``over`` is, to make and to read a message."""
        return bootstrap_ratio(self.row(*over, batch).both_us, self.row(*under, batch).both_us)

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        return {"codecs": [asdict(row) for row in self.rows], "workload": self.workload, **self.circumstances()}

    def to_pandas(self) -> pandas.DataFrame:
        """A row each, times as medians over the rounds."""
        import pandas

        times = [{"encode_us": row.make.value, "decode_us": row.read.value, "both_us": row.cost.value} for row in self.rows]
        return pandas.DataFrame([asdict(row) | medians for row, medians in zip(self.rows, times, strict=True)])

    def plot(self) -> Plot:
        """µs to make and to read the message of a step, over its requests, a line for each codec and output, with intervals."""
        figure, axes = subplots(7.5, 3.6)
        for codec, output in dict.fromkeys((row.codec, row.output) for row in self.rows):
            rows = sorted((row for row in self.rows if (row.codec, row.output) == (codec, output)), key=lambda row: row.batch)
            costs = [row.cost for row in rows]
            errors = [[one.value - one.low for one in costs], [one.high - one.value for one in costs]]
            color, mark = _STYLES[codec]
            style = {"fmt": mark + _LINES[output], "color": color, "capsize": 3, "label": f"{codec}, {output}"}
            axes.errorbar([row.batch for row in rows], [one.value for one in costs], yerr=errors, **style)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("requests of a step")
        axes.set_ylabel("µs to make and read its message")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        return Plot(figure, self._summary())

    def __str__(self) -> str:
        lines = ["  ".join(map("{:>{}}".format, cells, _WIDTHS)) for cells in (_HEAD, *(row.cells for row in self.rows))]
        return "\n".join([self._workload(), *lines, *self.warned()])

    def __repr__(self) -> str:
        return f"<codecs: {self._summary()}>"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in _HEAD)
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row.cells) + "</tr>" for row in self.rows)
        notes = "<br>".join(map(escape, [self._workload(), *self.notes, *self.warned()]))
        return f"<table><tr>{head}</tr>{body}</table><p><small>{notes}</small></p>"

    def _summary(self) -> str:
        dearest = max(self.rows, key=lambda row: row.cost.value)
        return f"up to {dearest.cost.value:,.0f} µs a step ({dearest.codec}, {dearest.output}, {dearest.batch} requests)"

    def _workload(self) -> str:
        return (
            f"the message of a step that brings each request one token, of {self.workload.get('tokens')} so far; medians of "
            f"{self.workload.get('num_iters')} rounds with their intervals"
        )


def load_codecs(path: str | Path) -> CodecsResult:
    """A result as ``mqlab bench codecs --output-json`` wrote it.

    Raises:
        ConfigError: there is no such file, or it is something else.
    """

    def make(record: dict[str, Any]) -> CodecsResult:
        rows, notes = msgspec.convert(record["codecs"], tuple[Row, ...]), (*record["notes"], *record["warnings"])
        return CodecsResult(rows=rows, workload=record["workload"], notes=notes, meta=record["meta"])

    return read_output(path, "result of 'mqlab bench codecs'", make)
