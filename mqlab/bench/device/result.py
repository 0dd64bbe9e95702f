"""What ``mqlab bench device`` measured, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mqlab.bench.device.goals import Goal, goals
from mqlab.bench.device.tables import Table, tables
from mqlab.bench.output import read_output
from mqlab.bench.show import Circumstances
from mqlab.model.measure.rows import COPY, Agreement, Bubble, Ceiling, EngineRate, Facts, Row, Skip, StepTime, Swept, Timed

if TYPE_CHECKING:
    import pandas

    from mqlab.record.plot import Plot

R = TypeVar("R", bound=Row)

KINDS: Mapping[str, type[Row]] = {
    "ceilings": Ceiling,
    "correctness": Agreement,
    "kernels": Timed,
    "sweep": Swept,
    "steps": StepTime,
    "bubbles": Bubble,
    "engines": EngineRate,
    "skipped": Skip,
}
"""Of rows, by what they are called in a record."""


@dataclass(frozen=True, kw_only=True)
class DeviceResult(Circumstances):
    """A device: what it reaches at its best, and what of that kernels, steps and engines reach.

    Attributes:
        facts: of the device.
        rows: what was measured, in the order in which it was; see ``of``.
        workload: the settings, as they took effect.
        elapsed_s: of the whole run.
    """

    facts: Facts
    rows: tuple[Row, ...]
    workload: dict[str, Any] = field(default_factory=dict)
    elapsed_s: float = 0.0

    def of(self, kind: type[R]) -> list[R]:
        """The rows of one kind."""
        return [row for row in self.rows if isinstance(row, kind)]

    def ceiling(self, name: str) -> float | None:
        """What the device reaches at best, in the row's unit; None where it was not measured."""
        return next((row.value for row in self.of(Ceiling) if row.name == name), None)

    def share(self, row: Timed) -> float | None:
        """What part of its time a kernel would take at the ceilings, whichever holds it up; None where one was not measured."""
        copy, arithmetic = self.ceiling(COPY), self.ceiling(row.ceiling)
        if copy is None or (row.flops and arithmetic is None):
            return None
        return max(row.moved / copy / 1e3, row.flops / arithmetic / 1e6 if arithmetic else 0.0) / row.time.median

    def floor_us(self, row: StepTime) -> float | None:
        """µs of a step at the copy bandwidth; None where that was not measured."""
        copy = self.ceiling(COPY)
        return None if copy is None else row.moved / copy / 1e3

    @property
    def is_real(self) -> bool:
        """Whether its times are those of a device at sizes that matter."""
        return self.facts.kind == "cuda" and self.workload.get("size") == "full"

    @property
    def goals(self) -> list[Goal]:
        """What was wanted, and whether it was reached."""
        return goals(self)

    @property
    def wrong(self) -> list[Agreement]:
        """Kernels that do not agree with their reference."""
        return [row for row in self.of(Agreement) if not row.ok]

    @property
    def tables(self) -> list[Table]:
        """All of it, as text."""
        return tables(self)

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        rows = {name: [asdict(row) for row in self.of(kind)] for name, kind in KINDS.items()}
        return {
            "device_bench": asdict(self.facts),
            **rows,
            "goals": [asdict(goal) for goal in self.goals],
            "elapsed_s": self.elapsed_s,
            "workload": self.workload,
            **self.circumstances(),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """A row each kernel and case: ``us``, ``gb_s``, ``tflops`` and ``share`` of the ceiling that holds it up."""
        import pandas

        return pandas.DataFrame(
            [
                {
                    "kernel": row.kernel,
                    "case": row.case,
                    "dtype": row.dtype,
                    "us": row.time.median,
                    "gb_s": row.moved / row.time.median / 1e3,
                    "tflops": row.flops / row.time.median / 1e6,
                    "share": self.share(row),
                }
                for row in self.of(Timed)
            ]
        )

    def plot(self) -> Plot:
        """What part of its ceiling each kernel reaches, and each layout's tokens a second."""
        from mqlab.bench.device.plot import plot

        return plot(self)

    def __str__(self) -> str:
        return "\n".join([self._head(), *(f"\n{table}" for table in self.tables), "", *map(str, self.goals), *self.warned()])

    def __repr__(self) -> str:
        reached, checked = sum(goal.state == "reached" for goal in self.goals), len(self.of(Agreement))
        right = f"{checked - len(self.wrong)} of {checked} uses of kernels right"
        return f"<device, {self.facts.name}: {right}, {reached} of {len(self.goals)} goals reached>"

    def _repr_html_(self) -> str:
        notes = "<br>".join(map(escape, [self._head(), *map(str, self.goals), *self.notes, *self.warned()]))
        return f"<p>{notes}</p>" + "".join(table.html() for table in self.tables)

    def _head(self) -> str:
        facts = self.facts
        software = ", ".join(f"{name} {number}" for name, number in facts.software.items())
        size = "" if self.workload.get("size") == "full" else f"; size {self.workload.get('size')}: times mean nothing"
        return f"device: {facts.name}, {facts.memory_gib:.0f} GiB; {software}; {self.elapsed_s:.0f} s{size}"


def load_device(path: str | Path) -> DeviceResult:
    """A result as ``mqlab bench device --output-json`` wrote it.

    Raises:
        ConfigError: there is no such file, or it is something else.
    """

    def make(record: dict[str, Any]) -> DeviceResult:
        rows = [row for name, kind in KINDS.items() for row in msgspec.convert(record[name], list[kind])]
        return DeviceResult(
            facts=msgspec.convert(record["device_bench"], Facts),
            rows=tuple(rows),
            workload=record["workload"],
            elapsed_s=record["elapsed_s"],
            notes=(*record["notes"], *record["warnings"]),
            meta=record["meta"],
        )

    return read_output(path, "result of 'mqlab bench device'", make)
