"""What was found of a kernel, kept in a file: a row for each case, config and capability, as long as they are of the code as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from mqlab_kernels.compile.resources import Resources
from mqlab_kernels.compile.source import fingerprint
from mqlab_kernels.compile.worker import Job
from mqlab_kernels.kernel import Kernel

COLUMNS = ("case", "config", "capability", "shipped", *Resources.__dataclass_fields__, "seconds", "error")


class Row(NamedTuple):
    """One compilation and what came of it; ``resources`` is None where ``error`` says why."""

    job: Job
    resources: Resources | None
    seconds: float
    error: str = ""


class Table:
    """Rows of one kernel, by job."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.rows: dict[Job, Row] = {}

    @classmethod
    def load(cls, kernel: Kernel, folder: Path) -> Table:
        """The rows of the kernel's file in ``folder`` that are still true: same code, Triton, case and config.

        A failure of what ships is not taken for the last word: it is left out.
        """
        table, path = cls(kernel), folder / f"{kernel.name}.json"
        saved = json.loads(path.read_text()) if path.exists() else {}
        if {name: saved.get(name) for name in ("triton", "source")} == _made_of(kernel):
            table.rows = {row.job: row for row in table._still_true(saved) if row.resources or not table.is_shipped(row.job)}
        return table

    def add(self, job: Job, outcome: Mapping[str, Any]) -> Row:
        """Keep what a worker says of a job."""
        self.rows[job] = row = _row(job, outcome)
        return row

    def in_order(self) -> list[Row]:
        """All rows, case after case."""
        return [self.rows[job] for job in sorted(self.rows)]

    def shipped(self) -> list[Row]:
        """Rows of configs that ``choose`` gives, case after case."""
        return [row for row in self.in_order() if self.is_shipped(row.job)]

    def is_shipped(self, job: Job) -> bool:
        """Whether ``choose`` gives the job's config."""
        return self.kernel.sweep[job.config] == self.kernel.choose(self.kernel.cases[job.case].constants, job.capability)

    def save(self, folder: Path) -> None:
        """Write the kernel's file, a row a line, with the places of its case and its config among those listed."""
        folder.mkdir(parents=True, exist_ok=True)
        head = json.dumps({"kernel": self.kernel.name, **_made_of(self.kernel)})[1:-1]
        rows = [self._as_list(row) for row in self.in_order()]
        lists = [("cases", _cases(self.kernel)), ("configs", _configs(self.kernel)), ("rows", rows)]
        parts = [f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, values)) + "\n]" for name, values in lists]
        columns = f'"columns": {json.dumps(COLUMNS)}'
        (folder / f"{self.kernel.name}.json").write_text("{" + ",\n".join([head, columns, *parts]) + "}\n")

    def _as_list(self, row: Row) -> list[Any]:
        found = {**row.resources.as_dict(), "seconds": row.seconds} if row.resources else {"error": row.error}
        what = {"case": row.job.case, "config": row.job.config, "capability": row.job.capability, "shipped": self.is_shipped(row.job)}
        return [{**what, **found}.get(column) for column in COLUMNS]

    def _still_true(self, saved: Mapping[str, Any]) -> Iterator[Row]:
        """Rows of cases and configs that are still there, wherever they are now."""
        cases, configs = _cases(self.kernel), _configs(self.kernel)
        for values in saved["rows"]:
            row = dict(zip(saved["columns"], values, strict=True))
            case, config = saved["cases"][row["case"]], saved["configs"][row["config"]]
            if case in cases and config in configs:
                yield _row(Job(self.kernel.name, cases.index(case), configs.index(config), row["capability"]), row)


def _row(job: Job, outcome: Mapping[str, Any]) -> Row:
    if outcome.get("error"):
        return Row(job, None, 0.0, outcome["error"])
    return Row(job, Resources(**{name: outcome[name] for name in Resources.__dataclass_fields__}), outcome["seconds"])


def _made_of(kernel: Kernel) -> dict[str, Any]:
    return {"triton": version("triton"), "source": fingerprint(kernel.function)}


def _cases(kernel: Kernel) -> list[dict[str, Any]]:
    """What is compiled, as JSON reads it back."""
    return json.loads(json.dumps([asdict(case) for case in kernel.cases]))


def _configs(kernel: Kernel) -> list[dict[str, Any]]:
    return json.loads(json.dumps([config.options for config in kernel.sweep]))
