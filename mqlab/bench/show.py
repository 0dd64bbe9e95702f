"""What results of benchmarks show alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from mqlab.bench.cpu import CpuReport

FOREIGN_LIMIT = 0.1
"""Share of the machine in other hands from which a result says so: throughput then falls by 20 % and more."""


def figures_html(figures: Mapping[str, str], notes: Sequence[str]) -> str:
    """A static table of names and figures, in whatever colours surround it, with notes under it."""
    cells = "".join(f'<tr><th style="text-align:left">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in figures.items())
    lines = "<br>".join(map(escape, notes))
    return f"<table>{cells}</table><p><small>{lines}</small></p>"


def foreign_note(cpu: CpuReport | None) -> list[str]:
    """A warning where others used much of the machine during the run; nothing otherwise."""
    if cpu is None or cpu.foreign < FOREIGN_LIMIT:
        return []
    return [f"others used {cpu.foreign:.0%} of the machine meanwhile: run it again when the machine is quiet"]
