"""What ``mqlab bench frontend`` measured, and how it is shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from html import escape
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mqlab.bench.frontend.driver import Driven
from mqlab.bench.frontend.options import Load
from mqlab.bench.output import read_output
from mqlab.bench.serve_result import BUSY
from mqlab.bench.show import foreign_warning
from mqlab.record.stats import Interval, bootstrap_ci, bootstrap_ratio, concurrency, percentiles

if TYPE_CHECKING:
    import pandas

SERVER, FLOOR, PEER = "mqlab", "floor", "vLLM"

_ONE_EACH = 1.005
"""Tokens in a chunk from which on it is said that they did not come one by one."""
_SHOWN_ERRORS = 3

_HEAD = (
    "streams",
    "server",
    "front µs/token",
    "tokens/s",
    "first chunk p50",
    "p99 ms",
    "engine µs",
    "client µs",
    "tokens/chunk",
    "writes/chunk",
    "others",
)


@dataclass(frozen=True)
class Round:
    """One run of one server.

    Attributes:
        tokens: that were streamed, by all streams. chunks: that brought them.
        elapsed_s: from the first request to the last end.
        front_s, engine_s, client_s: CPU time, user and system, of all processes of the front, of those behind it, and of the clients.
        first_ms: from sending a request to its first chunk with a token: p50 and p99 over the streams.
        bytes_per_chunk: on the connection, heads and ends of answers included.
        writes: system calls of the front that wrote something (of ``write``'s kind; the wake-ups of its other threads are among them).
        reads: system calls of the clients that brought something, fewer than chunks where a client is behind.
        peak: streams that were open at once.
        foreign: part of the machine that others used.
        lost: streams that were not served to their end. errors: the first few reasons.
    """

    tokens: int
    chunks: int
    elapsed_s: float
    front_s: float
    engine_s: float
    client_s: float
    first_ms: dict[str, float]
    bytes_per_chunk: float
    writes: int
    reads: int
    peak: int
    foreign: float
    lost: int
    errors: tuple[str, ...]


@dataclass(frozen=True)
class Memory:
    """What the front's processes hold more than before the connections came, in bytes for each of them, while all are open.

    Attributes:
        rss: resident. pss: likewise, a page that processes share divided by them.
        total_mb: of the front altogether (PSS, 10⁶ bytes).
    """

    rss: float
    pss: float
    total_mb: float


def round_of(driven: Driven, load: Load, writes: int, front: list[str], engine: list[str]) -> Round:
    """The figures of a run.

    Args:
        writes: of the front. front, engine: names of their processes in the run's report.
    """
    seen, cpu = driven.seen, driven.cpu
    first = [(first - sent) / 1e6 for sent, first in zip(seen.sent_ns, seen.first_ns, strict=True) if first]
    _, running = concurrency(seen.sent_ns, seen.end_ns)
    used = {name: share * cpu.elapsed_s for name, share in cpu.share.items()}
    return Round(
        tokens=sum(chunks if error else load.tokens for chunks, error in zip(seen.chunks, seen.errors, strict=True)),
        chunks=sum(seen.chunks),
        elapsed_s=seen.elapsed_s,
        front_s=sum(used.get(name, 0.0) for name in front),
        engine_s=sum(used.get(name, 0.0) for name in engine),
        client_s=seen.cpu_s,
        first_ms=percentiles(first, (50, 99)),
        bytes_per_chunk=seen.size / max(1, sum(seen.chunks)),
        writes=writes,
        reads=seen.reads,
        peak=int(running.max()),
        foreign=cpu.foreign,
        lost=len(seen.lost),
        errors=tuple(dict.fromkeys(seen.lost))[:_SHOWN_ERRORS],
    )


@dataclass(frozen=True)
class Row:
    """One server under one load, round by round."""

    server: str
    load: Load
    rounds: tuple[Round, ...]
    memory: Memory | None = None

    @property
    def us_per_token(self) -> list[float]:
        """CPU time of the front for each token, µs."""
        return self._us("front_s")

    @property
    def cost(self) -> Interval:
        """The median of it, with its interval."""
        return bootstrap_ci(self.us_per_token)

    @property
    def tokens_per_s(self) -> Interval:
        """Tokens of all streams in a second."""
        return bootstrap_ci([one.tokens / one.elapsed_s for one in self.rounds])

    @property
    def tokens_per_chunk(self) -> float:
        """1 where each came by itself; above where several came at once."""
        return sum(one.tokens for one in self.rounds) / max(1, sum(one.chunks for one in self.rounds))

    @property
    def writes_per_chunk(self) -> float:
        """System calls with which the front wrote a chunk; well below 1 where it wrote several chunks at once."""
        return sum(one.writes for one in self.rounds) / max(1, sum(one.chunks for one in self.rounds))

    @property
    def lost(self) -> int:
        """Streams that were not served to their end, all rounds together."""
        return sum(one.lost for one in self.rounds)

    @property
    def client_share(self) -> float:
        """What the clients used, by what the front used."""
        return sum(one.client_s for one in self.rounds) / max(1e-9, sum(one.front_s for one in self.rounds))

    @property
    def client_busy(self) -> float:
        """CPUs that the clients used, on average."""
        return float(np.mean([one.client_s / one.elapsed_s for one in self.rounds]))

    @property
    def foreign(self) -> float:
        """Part of the machine that others used, on average."""
        return float(np.mean([one.foreign for one in self.rounds]))

    def first_ms(self, point: str) -> float:
        """Time to the first chunk, ``p50`` or ``p99`` over the streams: its median over the rounds."""
        return float(np.median([one.first_ms[point] for one in self.rounds]))

    @property
    def cells(self) -> tuple[str, ...]:
        """As text, in the order of the columns."""
        engine, client = (float(np.median(self._us(name))) for name in ("engine_s", "client_s"))
        first = f"{self.first_ms('p50'):,.1f}", f"{self.first_ms('p99'):,.1f}"
        figures = f"{engine:.1f}", f"{client:.1f}", f"{self.tokens_per_chunk:.3f}", f"{self.writes_per_chunk:.3f}", f"{self.foreign:.0%}"
        return str(self.load), self.server, str(self.cost), f"{self.tokens_per_s.value:,.0f}", *first, *figures

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        rounds = [asdict(one) | {"us_per_token": us} for one, us in zip(self.rounds, self.us_per_token, strict=True)]
        figures = {
            "front_us_per_token": asdict(self.cost),
            "tokens_per_s": asdict(self.tokens_per_s),
            "tokens_per_chunk": self.tokens_per_chunk,
            "writes_per_chunk": self.writes_per_chunk,
            "first_chunk_ms": {point: self.first_ms(point) for point in ("p50", "p99")},
            "client_share": self.client_share,
            "foreign_share": self.foreign,
            "lost": self.lost,
        }
        memory = asdict(self.memory) if self.memory else None
        return {"server": self.server, "load": msgspec.to_builtins(self.load), **figures, "memory": memory, "rounds": rounds}

    def _us(self, name: str) -> list[float]:
        return [getattr(one, name) / max(1, one.tokens) * 1e6 for one in self.rounds]


@dataclass(frozen=True, kw_only=True)
class FrontendResult:
    """CPU time of the front for each token that it streamed, by load and server.

    Attributes:
        workload: the settings, as they took effect.
        notes: what was asked for and not done.
    """

    rows: tuple[Row, ...]
    workload: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)

    def row(self, server: str, load: str) -> Row:
        """One server under one load, by the words of its row. Raises KeyError where it was not measured."""
        return {(one.server, str(one.load)): one for one in self.rows}[server, load]

    @property
    def ratios(self) -> dict[tuple[str, str], Interval]:
        """How many times mqlab's cost the others' cost is under the same load, by load and server; of the floor, how many times the floor's
        cost is mqlab's."""
        own = {str(row.load): row for row in self.rows if row.server == SERVER}
        return {(str(row.load), row.server): _ratio(own[str(row.load)], row) for row in self.rows if row.server != SERVER}

    @property
    def void(self) -> list[str]:
        """Why the figures are not what was asked for; empty where they are."""
        lost = [f"{row.load}, {row.server}: {row.lost} streams were lost: {'; '.join(_errors(row))}" for row in self.rows if row.lost]
        packed = [
            f"{row.load}: {row.tokens_per_chunk:.3f} tokens in a chunk, not one by one"
            for row in self.rows
            if row.server == SERVER and row.tokens_per_chunk > _ONE_EACH
        ]
        apart = [
            f"{row.load}: at most {row.rounds[0].peak:,} were open at once"
            for row in self.rows
            if row.load.held and row.rounds[0].peak < row.load.streams
        ]
        return [*lost, *packed, *apart]

    @property
    def warnings(self) -> list[str]:
        """What a reader of the figures must know."""
        busy = [f"{row.load}, {row.server}: the clients were the limit" for row in self.rows if row.client_busy > BUSY]
        return [*self.void, *busy, *foreign_warning(max((row.foreign for row in self.rows), default=0.0))]

    @property
    def remarks(self) -> list[str]:
        """Ratios, what the clients cost, and memory, a line each."""
        ratios = [_compared(load, server, one) for (load, server), one in self.ratios.items()]
        shares = [f"{row.client_share:.0%}" for row in self.rows if row.server == SERVER]
        clients = f"the clients used {', '.join(shares)} of the CPU time that {SERVER}'s front used"
        return [*ratios, clients, *(_held(row) for row in self.rows if row.memory), *self.notes]

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        ratios = [{"load": load, "server": server, **asdict(one)} for (load, server), one in self.ratios.items()]
        rows = [row.as_record() for row in self.rows]
        words = {"notes": list(self.notes), "warnings": self.warnings, "void": self.void}
        return {"frontend": rows, "ratios": ratios, "workload": self.workload, **words, "meta": self.meta}

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each server and load, the figures as medians over the rounds."""
        import pandas

        figures = [
            {
                "streams": row.load.streams,
                "step_ms": row.load.step_s * 1000,
                "server": row.server,
                "front_us_per_token": row.cost.value,
                "tokens_per_s": row.tokens_per_s.value,
                "first_chunk_p50_ms": row.first_ms("p50"),
                "first_chunk_p99_ms": row.first_ms("p99"),
            }
            for row in self.rows
        ]
        return pandas.DataFrame(figures)

    def __str__(self) -> str:
        table = [_HEAD, *(row.cells for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) for cells in table]
        return "\n".join([*lines, *self.remarks, *(f"warning: {text}" for text in self.warnings)])

    def __repr__(self) -> str:
        costs = [f"{row.load} {row.cost.value:.3g}" for row in self.rows if row.server == SERVER]
        return f"<frontend: µs per token: {', '.join(costs)}>"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in _HEAD)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.cells) + "</tr>" for row in self.rows)
        notes = "<br>".join(map(escape, [*self.remarks, *(f"warning: {text}" for text in self.warnings)]))
        return f"<table><tr>{head}</tr>{body}</table><p><small>{notes}</small></p>"


def _ratio(own: Row, other: Row) -> Interval:
    over, under = (own, other) if other.server == FLOOR else (other, own)
    try:
        return bootstrap_ratio(over.us_per_token, under.us_per_token)
    except ValueError:  # a run too short for the kernel's clock of CPU time
        return Interval(nan, nan, nan)


def _compared(load: str, server: str, ratio: Interval) -> str:
    if server == FLOOR:
        return f"{load}: {SERVER} costs {ratio} times its floor"
    return f"{load}: {server} costs {ratio} times {SERVER}"


def _errors(row: Row) -> list[str]:
    return list(dict.fromkeys(error for one in row.rounds for error in one.errors))[:_SHOWN_ERRORS]


def _held(row: Row) -> str:
    memory, peak = row.memory, row.rounds[0].peak
    assert memory is not None, "asked of those that have it"
    kb = f"{memory.pss / 1000:,.1f} kB PSS, {memory.rss / 1000:,.1f} kB RSS"
    return f"{row.load}: {peak:,} open at once; the front holds {kb} for each connection, {memory.total_mb:,.0f} MB in all"


def load_frontend(path: str | Path) -> FrontendResult:
    """A result as ``mqlab bench frontend --output-json`` wrote it.

    Raises:
        ConfigError: there is no such file, or it is something else.
    """

    def make(record: dict[str, Any]) -> FrontendResult:
        rows = msgspec.convert(record["frontend"], tuple[Row, ...])
        return FrontendResult(rows=rows, workload=record["workload"], notes=tuple(record["notes"]), meta=record["meta"])

    return read_output(path, "result of 'mqlab bench frontend'", make)
