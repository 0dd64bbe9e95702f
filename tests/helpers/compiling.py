"""Tables of kernels compiled afresh, held against the committed ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from mqlab_kernels import catalogue
from mqlab_kernels.compile import report
from mqlab_kernels.compile.survey import jobs_of
from mqlab_kernels.compile.table import Row, Table
from mqlab_kernels.kernel import CAPABILITIES

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "profiles" / "kernels"
REMEDY = "run `make kernels` and commit profiles/kernels"
KERNELS = catalogue.kernels()


def wrong(tables: Iterable[Table]) -> list[str]:
    """What did not compile, and what ships though it spills or does not fit."""
    failed = [report.line(table, row) for table in tables for row in table.in_order() if row.resources is None]
    return failed + [line for table in tables for line in report.misfits(table)]


def differing(tables: Iterable[Table]) -> list[str]:
    """What came out otherwise than the committed tables say, and what of them must be there and is not."""
    return [report.line(table, row) for table in tables for row in _differing(table, Table.load(table.kernel, TABLES))]


def _differing(table: Table, committed: Table) -> Iterator[Row]:
    """A committed table has all that ships and the sweep of the first case at least."""
    required = set(jobs_of(table.kernel, CAPABILITIES, swept=1))
    for row in table.in_order():
        known = committed.rows.get(row.job)
        if known.resources != row.resources if known else row.job in required:
            yield row
