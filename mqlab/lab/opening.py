"""What was saved, shown again: traces, captures, results of benches."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from mqlab.bench.comparison import Comparison
from mqlab.errors import ConfigError, ProfileError, TraceError
from mqlab.record.capture import Capture
from mqlab.record.operators import TorchCapture
from mqlab.record.trace import Trace

_SHOWN = (int, float, str, bool)


class Saved:
    """The record of a bench: its figures as a table, all of it in ``record``.

    Args:
        path: where it was read from.
        record: what is in it.
    """

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self.path = path
        self.record = record

    @property
    def figures(self) -> dict[str, Any]:
        """What is a single number or text."""
        return {name: value for name, value in self.record.items() if isinstance(value, _SHOWN)}

    def __repr__(self) -> str:
        width = max(map(len, self.figures), default=0)
        return "\n".join([str(self.path), *(f"  {name:{width}}  {_text(value)}" for name, value in self.figures.items())])

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(_text(value))}</td></tr>'
            for name, value in self.figures.items()
        )
        return f"<table><caption>{escape(self.path.name)}</caption>{cells}</table>"


def open_saved(path: str) -> Trace | Capture | TorchCapture | Comparison | Saved:
    """Whatever mqlab, or a tool whose files it reads, wrote there.

    Raises:
        ConfigError: nothing is there, or nothing that is known.
    """
    where = Path(path)
    if not where.exists():
        raise ConfigError(f"{path} does not exist")
    if where.suffix == ".json" and (record := _bench_record(where)) is not None:
        return Comparison.of_record(record) if "verdict" in record else Saved(where, record)
    problems = []
    for load in (Trace.load, Capture.load, TorchCapture.load):
        try:
            return load(where)
        except (TraceError, ProfileError) as error:
            problems.append(str(error))
    raise ConfigError(f"{path} is nothing that mqlab can show: " + "; ".join(problems))


def _bench_record(path: Path) -> dict[str, Any] | None:
    """A result of a bench; None for other JSON, such as a speedscope file or a Chrome trace."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    known = {"verdict", "elapsed_time", "avg_latency", "request_throughput"}
    return record if isinstance(record, dict) and known & record.keys() else None


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
