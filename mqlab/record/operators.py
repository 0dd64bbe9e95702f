"""Operators in a trace of torch.profiler: how often, how long by themselves, how long with what they called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mqlab.errors import ProfileError
from mqlab.record.pages import note, table

if TYPE_CHECKING:
    import pandas

_ON_CPU = "cpu_op"
_ON_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))


class _Event(msgspec.Struct):
    """An event of a Chrome trace; times in microseconds."""

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0


class _File(msgspec.Struct):
    traceEvents: list[_Event]


@dataclass(frozen=True)
class Operator:
    """All calls of an operator, or of a kernel.

    Attributes:
        where: "cpu" or "device".
        calls: how many.
        own_us: microseconds in it, without operators that it called.
        total_us: microseconds in it with them; what calls itself counts again.
        share: of ``own_us`` in all that ran at the same place, 0 to 1.
    """

    name: str
    where: str
    calls: int
    own_us: float
    total_us: float
    share: float


@dataclass(frozen=True)
class TorchCapture:
    """A trace of torch.profiler and the operators in it, those with the most time of their own first."""

    path: Path
    operators: Sequence[Operator]

    @staticmethod
    def load(path: str | Path) -> TorchCapture:
        """Read a Chrome trace, as ``stop_profile`` and torch's ``export_chrome_trace`` write it.

        Raises:
            ProfileError: nothing there, or no such trace.
        """
        path = Path(path)
        try:
            events = msgspec.json.decode(path.read_bytes(), type=_File).traceEvents
        except (OSError, msgspec.MsgspecError) as error:
            raise ProfileError(f"{path} is no trace of torch.profiler: {error}; give the file that stop_profile named") from error
        return TorchCapture(path, operators_of(events))

    def top(self, n: int = 10) -> Sequence[Operator]:
        """The ``n`` operators with the most time of their own."""
        return self.operators[:n]

    def to_pandas(self) -> pandas.DataFrame:
        """Columns name, where, calls, own_us, total_us, share."""
        import pandas

        return pandas.DataFrame([vars(operator) for operator in self.operators])

    def __repr__(self) -> str:
        return f"TorchCapture({len(self.operators)} operators, {self.path})"

    def __str__(self) -> str:
        return "\n".join((repr(self), *(f"{one.share:7.1%} {one.own_us / 1e3:9.1f} ms {one.calls:6}  {one.name}" for one in self.top())))

    def _repr_html_(self) -> str:
        rows = ((f"{o.share:.1%}", f"{o.own_us / 1e3:.1f}", f"{o.total_us / 1e3:.1f}", str(o.calls), o.where, o.name) for o in self.top(15))
        return f"{table(('own', 'own ms', 'total ms', 'calls', 'where', 'operator'), rows)}{note('For ui.perfetto.dev:', self.path)}"


def operators_of(events: Iterable[Any]) -> list[Operator]:
    """Sums of the operators of a trace. Operators of one thread lie within one another or apart."""
    whole = [event for event in events if event.ph == "X"]
    rows = [
        *_rows("cpu", _nested([event for event in whole if event.cat == _ON_CPU])),
        *_rows("device", _flat([event for event in whole if event.cat in _ON_DEVICE])),
    ]
    return sorted(rows, key=lambda row: -row.own_us)


Sums = Mapping[str, tuple[int, float, float]]
"""Calls, own and total microseconds by name."""


def _rows(where: str, sums: Sums) -> list[Operator]:
    whole = sum(own for _, own, _ in sums.values()) or 1.0
    return [Operator(name, where, calls, own, total, own / whole) for name, (calls, own, total) in sums.items()]


def _flat(events: Iterable[_Event]) -> Sums:
    sums: defaultdict[str, tuple[int, float, float]] = defaultdict(lambda: (0, 0.0, 0.0))
    for event in events:
        sums[event.name] = _plus(sums[event.name], 1, event.dur, event.dur)
    return sums


def _nested(events: Sequence[_Event]) -> Sums:
    """As ``_flat``, with the time of each operator taken from the one around it."""
    sums: defaultdict[str, tuple[int, float, float]] = defaultdict(lambda: (0, 0.0, 0.0))
    around: defaultdict[tuple[int | str, int | str], list[_Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.ts, -event.dur)):
        stack = around[event.pid, event.tid]
        while stack and stack[-1].ts + stack[-1].dur <= event.ts:
            stack.pop()
        if stack:
            sums[stack[-1].name] = _plus(sums[stack[-1].name], 0, -event.dur, 0.0)
        sums[event.name] = _plus(sums[event.name], 1, event.dur, event.dur)
        stack.append(event)
    return sums


def _plus(sums: tuple[int, float, float], calls: int, own: float, total: float) -> tuple[int, float, float]:
    return sums[0] + calls, sums[1] + own, sums[2] + total
