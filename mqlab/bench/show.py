"""What results of benchmarks say and show alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import msgspec

from mqlab.bench.cpu import CpuReport
from mqlab.bench.reuse import Reuse

FOREIGN_LIMIT = 0.1
"""Share of the machine in other hands above which a result says so: throughput then falls by 20 % and more."""


def figures_html(figures: Mapping[str, str], notes: Sequence[str]) -> str:
    """A static table of names and figures, in whatever colours surround it, with notes under it."""
    cells = "".join(f'<tr><th style="text-align:left">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in figures.items())
    lines = "<br>".join(map(escape, notes))
    return f"<table>{cells}</table><p><small>{lines}</small></p>"


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What belongs to every result of an engine that the benchmark started itself.

    Attributes:
        engine: the settings, as they took effect.
        notes: what was asked for and not done.
        cpu: who used the processors.
        reuse: what the engine did not have to compute in what is measured.
        meta: where and with what; see ``mqlab.record.metadata.environment``.
    """

    engine: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    cpu: CpuReport | None = None
    reuse: Reuse = field(default_factory=Reuse)
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """What a reader of the figures must know."""
        return foreign_warning(self.cpu.foreign) if self.cpu else []

    def circumstances(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "engine": self.engine,
            "notes": list(self.notes),
            "warnings": self.warnings,
            "cpu": self.cpu.as_record() if self.cpu else None,
            "reuse": msgspec.to_builtins(self.reuse),
            "meta": self.meta,
        }

    def remarks(self) -> list[str]:
        """What was reused, and the warnings, as they stand below figures."""
        reused = [str(self.reuse)] if str(self.reuse) else []
        return [*reused, *self.warned()]

    def warned(self) -> list[str]:
        """The warnings alone."""
        return [f"warning: {text}" for text in self.warnings]


def foreign_warning(foreign: float) -> list[str]:
    """A warning where others used much of the machine during the run; nothing otherwise."""
    return [f"other programs used {foreign:.0%} of this machine: run it again when it is quiet"] if foreign > FOREIGN_LIMIT else []
