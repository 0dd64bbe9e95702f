"""Arrow tables as numpy columns, whole or by group."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

Columns = dict[str, np.ndarray]


def columns(table: pa.Table) -> Columns:
    """Every column as an array [rows]; for tables without nulls and lists."""
    return {name: table[name].to_numpy() for name in table.column_names}


def where(table: pa.Table, **values: str) -> pa.Table:
    """Rows in which all these columns have these values."""
    import pyarrow.compute as pc

    return table.filter(reduce(and_, (pc.field(name) == value for name, value in values.items())))


def by_writer(table: pa.Table) -> Iterator[tuple[str, str, Columns]]:
    """Rows of each run and writer, in their order."""
    for run, writer in sorted(writers(table)):
        yield run, writer, columns(where(table, run=run, writer=writer))


def writers(table: pa.Table) -> set[tuple[str, str]]:
    """Run and writer of every row that has one."""
    distinct: list[dict[str, Any]] = table.group_by(["run", "writer"]).aggregate([]).to_pylist()
    return {(row["run"], row["writer"]) for row in distinct if row["writer"]}


def records(frame: Any) -> list[dict[str, Any]]:
    """Rows of a DataFrame."""
    return frame.to_dict("records")
