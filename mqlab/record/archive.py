"""Saved traces: a folder ``NAME.mqtrace`` with a Parquet file a table and a ``meta.json``.

A folder rather than one file, so that any tool reads a table without knowing of mqlab (``pandas.read_parquet``), that a table can be
read alone, and that the metadata can be read and compared as text. It appears whole, under its name, or not at all.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqlab.errors import TraceError
from mqlab.record.metadata import META
from mqlab.record.tables import COLUMNS, schema

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".mqtrace"

FORMAT = 1
"""Of the folder; a reader refuses what is newer than itself."""

_MARK = "mqtrace"


def existing(path: str | Path) -> Path:
    """The folder of that name.

    Raises:
        TraceError: there is none.
    """
    path = Path(path)
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise TraceError(f"{path} {what}: a trace is a folder, NAME{SUFFIX} as Trace.save wrote it or the folder of a recording")
    return path


def read_meta(path: Path) -> dict[str, Any] | None:
    """Metadata of a saved trace; None where the folder is none.

    Raises:
        TraceError: a newer version wrote it, or it lost its metadata.
    """
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if path.suffix == SUFFIX:
            raise TraceError(f"{path} is not whole, its {META} cannot be read: {error}; tables can still be read as Parquet") from error
        return None
    if not isinstance(meta, dict) or _MARK not in meta:
        return None
    if meta[_MARK] > FORMAT:
        raise TraceError(f"{path} has format {meta[_MARK]}, this version of mqlab reads up to {FORMAT}: upgrade mqlab")
    return {key: value for key, value in meta.items() if key != _MARK}


def read_tables(path: Path) -> dict[str, pa.Table]:
    """Every table of a saved trace.

    Raises:
        TraceError: one is missing, damaged or has other columns.
    """
    return {name: _read_table(path / f"{name}.parquet", name) for name in COLUMNS}


def write(path: Path, tables: Mapping[str, pa.Table], meta: Mapping[str, Any], overwrite: bool) -> Path:
    """Write a trace and return its folder. What was there stays until the new one is whole.

    Raises:
        TraceError: something is there, and it is no trace or ``overwrite`` is not given.
    """
    path = path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)
    if path.exists() and not (overwrite and path.is_dir() and read_meta(path) is not None):
        raise TraceError(f"{path} exists: save under another name, or replace a saved trace with overwrite=True")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
        whole = Path(scratch) / "new"
        _write_files(whole, tables, meta)
        if path.exists():
            path.rename(Path(scratch) / "old")
        whole.rename(path)
    return path


def _write_files(folder: Path, tables: Mapping[str, pa.Table], meta: Mapping[str, Any]) -> None:
    from pyarrow import parquet

    folder.mkdir()
    for name, table in tables.items():
        parquet.write_table(table, folder / f"{name}.parquet", compression="zstd")
    (folder / META).write_text(json.dumps({_MARK: FORMAT, **meta}, indent=1, default=str), encoding="utf-8")


def _read_table(file: Path, name: str) -> pa.Table:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file).read(columns=list(COLUMNS[name])).select(list(COLUMNS[name])).cast(schema(name))
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise TraceError(f"{file} is no table of a trace: {error}; the other files of the folder are untouched") from error
