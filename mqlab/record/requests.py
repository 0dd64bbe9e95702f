"""What processes wrote of requests, one JSON object a line, and one row a request made of it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

SUFFIX = ".requests.jsonl"


class FrontRow(msgspec.Struct, frozen=True):
    """A finished request as the front saw it: stamps in ns, the stamp and the number of tokens of each delta; no numbers: one each.

    A stamp of 0 is none: an aborted request may have no first token.
    """

    id: str
    arrived_ns: int
    first_ns: int | None = None
    last_ns: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int = 0
    finish: str = ""
    token_ns: list[int] = []
    token_counts: list[int] | None = None

    @property
    def counts(self) -> list[int]:
        """Tokens of each delta."""
        return [1] * len(self.token_ns) if self.token_counts is None else self.token_counts


class EngineRow(msgspec.Struct, frozen=True):
    """A scheduled request as the engine saw it: when it came and when it was first in a step, in ns."""

    id: str
    added_ns: int
    scheduled_ns: int | None = None


RequestRow = FrontRow | EngineRow

_SIDES: tuple[tuple[str, type[RequestRow]], ...] = (("writer", FrontRow), ("engine", EngineRow))


def read_rows(path: Path) -> tuple[list[RequestRow], str]:
    """Rows of one file, of the engine's kind where its name begins so, and a note where its last line is not whole.

    Raises:
        ValueError: a line is no such row.
    """
    kind: type[RequestRow] = EngineRow if path.name.startswith("engine-") else FrontRow
    *lines, rest = path.read_bytes().split(b"\n")
    note = f"the last line of {path.name} is not whole: left out" if rest else ""
    return [_decode(line, number, kind) for number, line in enumerate(lines, 1)], note


def join_rows(rows: Iterable[tuple[str, RequestRow]]) -> Iterator[dict[str, Any]]:
    """One row a request from rows with their writers, in the order of arrival.

    Front and engine meet by id. An id may come again, but is not live twice: what the engine added belongs to the request that arrived
    last before it, and had not ended. A request that only the engine knows is not finished; one that only the front knows never
    reached it.
    """
    fronts: dict[str, list[tuple[str, FrontRow]]] = defaultdict(list)
    engines: dict[str, list[tuple[str, EngineRow]]] = defaultdict(list)
    for writer, row in rows:
        if isinstance(row, FrontRow):
            fronts[row.id].append((writer, row))
        else:
            engines[row.id].append((writer, row))
    joined = [_join(*pair) for id in {**fronts, **engines} for pair in _pairs(fronts.get(id, []), engines.get(id, []))]
    yield from sorted(joined, key=lambda row: (row.get("arrived_ns") or row.get("added_ns") or 0, row["id"]))


def rejoin(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Joined rows of one run joined anew, after halves of it came together."""
    yield from join_rows((row[who], _row(row, kind)) for row in rows for who, kind in _SIDES if row[who])


def _row(row: Mapping[str, Any], kind: type[RequestRow]) -> RequestRow:
    return kind(**{name: row[name] for name in kind.__struct_fields__ if row[name] is not None})


def _decode(line: bytes, number: int, kind: type[RequestRow]) -> RequestRow:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"line {number} is no request: {error}") from error


def _pairs(
    fronts: list[tuple[str, FrontRow]], engines: list[tuple[str, EngineRow]]
) -> Iterator[tuple[tuple[str, FrontRow] | None, tuple[str, EngineRow] | None]]:
    """Rows of one id, each with its other half or None."""
    fronts = sorted(fronts, key=lambda item: item[1].arrived_ns)
    arrived = [row.arrived_ns for _, row in fronts]
    halves: dict[int, tuple[str, EngineRow]] = {}
    for engine in sorted(engines, key=lambda item: item[1].added_ns):
        added = engine[1].added_ns
        index = bisect_right(arrived, added) - 1
        if index < 0 or index in halves or added > (fronts[index][1].last_ns or added):
            yield None, engine
        else:
            halves[index] = engine
    yield from ((front, halves.get(index)) for index, front in enumerate(fronts))


def _join(front: tuple[str, FrontRow] | None, engine: tuple[str, EngineRow] | None) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if engine is not None:
        writer, seen = engine
        row |= {"engine": writer, **_fields(seen), "queue_ms": _ms(seen.added_ns, seen.scheduled_ns)}
    if front is not None:
        writer, done = front
        row |= {"writer": writer, **_fields(done), "token_counts": done.counts, **_latencies(done)}
    return row


def _fields(row: RequestRow) -> dict[str, Any]:
    """As a table has them: a stamp of 0 is none, a list without stamps is a list."""
    return {name: None if value == 0 and name.endswith("_ns") else value for name, value in msgspec.structs.asdict(row).items()}


def _latencies(row: FrontRow) -> dict[str, Any]:
    """TPOT as vLLM's benchmark has it: (last - first) / (tokens - 1), none for a request of one token."""
    decode = _ms(row.first_ns, row.last_ns)
    return {
        "ttft_ms": _ms(row.arrived_ns, row.first_ns),
        "tpot_ms": decode / (row.output_tokens - 1) if decode is not None and row.output_tokens > 1 else None,
        "e2el_ms": _ms(row.arrived_ns, row.last_ns),
        "itl_ms": [(later - earlier) / 1e6 for earlier, later in pairwise(row.token_ns)],
    }


def _ms(start_ns: int | None, end_ns: int | None) -> float | None:
    return (end_ns - start_ns) / 1e6 if start_ns and end_ns else None
