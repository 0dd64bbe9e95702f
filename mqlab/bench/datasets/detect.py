"""What kind of dataset a file is, by how it begins."""

from __future__ import annotations

from pathlib import Path

from mqlab.bench.datasets.files import bad_file
from mqlab.bench.datasets.trace_formats import is_trace
from mqlab.bench.options import DatasetName
from mqlab.errors import ConfigError

_HEAD_BYTES = 65536
_STRUCTURED = (".json", ".jsonl", ".csv", ".parquet")
_KNOWN = "a ShareGPT JSON list, a trace (Azure CSV, BurstGPT CSV, Mooncake JSONL) or lines of text for sonnet"


def detect(path: Path) -> DatasetName:
    """sharegpt, trace or sonnet.

    Raises:
        ConfigError: it is none of them, or cannot be read.
    """
    head = _head(path)
    first_line = head.lstrip().partition("\n")[0].rstrip("\r")
    if is_trace(first_line):
        return "trace"
    if first_line.startswith("[") and path.suffix != ".txt":
        return "sharegpt"
    if not first_line or path.suffix.lower() in _STRUCTURED or "\0" in head:
        raise bad_file(path, "line 1", f"{first_line[:60]!r} is of no known kind", _KNOWN)
    return "sonnet"


def _head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
