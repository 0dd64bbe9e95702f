"""What kernels take of a GPU, as ``python -m mqlab_kernels compile`` found it without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqlab.record.plot import BLUE, VERMILION, Plot, subplots

if TYPE_CHECKING:
    import pandas


def read_compiled(folder: str | Path) -> pandas.DataFrame:
    """The tables of a folder such as profiles/kernels: a row for each kernel, case, config and GPU.

    Columns: ``kernel``, ``case``, ``config`` in words, ``warps``, ``sm``, ``shipped``; ``registers`` of a thread, ``spills`` in bytes,
    ``shared`` in bytes of a program, ``loads`` by bytes, ``products``, ``seconds`` of compiling; ``error`` where it could not be compiled.
    """
    import pandas

    rows = [row for path in sorted(Path(folder).glob("*.json")) for row in _rows(json.loads(path.read_text()))]
    return pandas.DataFrame(rows)


def plot_sweep(compiled: pandas.DataFrame, kernel: str, sm: int) -> Plot:
    """Registers of each config of a kernel's sweep, for the first of its cases: those that spill marked, and the one that ships."""
    rows = compiled.query("kernel == @kernel and sm == @sm and registers.notna()")
    case = rows["case"].iloc[0]
    frame = rows.query("case == @case").iloc[::-1]
    figure, axes = subplots(7.5, 1.1 + 0.24 * len(frame))
    names = [f"{'▸ ' if ships else ''}{config}" for config, ships in zip(frame["config"], frame["shipped"], strict=True)]
    bars = axes.barh(names, frame["registers"], color=[VERMILION if spills else BLUE for spills in frame["spills"]])
    axes.bar_label(bars, [_said(row) for _, row in frame.iterrows()], fontsize=7)
    axes.tick_params(labelsize=7)
    axes.set_xlabel("registers of a thread; ▸ ships", fontsize=8)
    axes.set_xlim(0, 400)  # room for what is written behind the longest bar
    axes.set_title(f"{kernel}, {case}, sm_{sm}", fontsize=9)
    spilling = int((frame["spills"] > 0).sum())
    return Plot(figure, f"{kernel} on sm_{sm}: {len(frame)} configs, {spilling} of them spill")


def _rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    named = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    return [
        {
            "kernel": table["kernel"],
            "case": table["cases"][row.pop("case")]["name"],
            "warps": table["configs"][row["config"]]["num_warps"],
            "config": _words(table["configs"][row.pop("config")]),
            "sm": row.pop("capability"),
            **row,
        }
        for row in named
    ]


def _words(config: dict[str, int]) -> str:
    constants = [f"{name} {value}" for name, value in config.items() if not name.startswith("num_")]
    return ", ".join([*constants, f"{config['num_warps']} warps", f"{config['num_stages']} stages"])


def _said(row: Any) -> str:
    spills = f", {row['spills']:.0f} B of spills" if row["spills"] else ""
    return f" {row['registers']:.0f}; {row['shared'] / 1024:.0f} KiB{spills}"
