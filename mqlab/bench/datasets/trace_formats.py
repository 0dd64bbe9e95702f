"""The public trace formats: when requests came, and how long they were.

Azure LLM inference traces 2023 and 2024: CSV ``TIMESTAMP,ContextTokens,GeneratedTokens`` (ISO times).
BurstGPT: CSV with ``Timestamp`` (seconds), ``Request tokens``, ``Response tokens`` among its columns; failed requests have no response.
Mooncake (FAST'25) and Qwen-Bailian: JSONL ``{"timestamp": ms, "input_length", "output_length", "hash_ids"}``; equal ids are equal blocks.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

from mqlab.bench.datasets.files import bad_file
from mqlab.errors import ConfigError

_KNOWN = (
    "Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens), BurstGPT CSV (Timestamp,…,Request tokens,Response tokens) "
    'or Mooncake JSONL ({"timestamp": ms, "input_length": N, "output_length": N, "hash_ids": […]})'
)


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace.

    Attributes:
        at_s: seconds, on the trace's own clock.
        hash_ids: what its prompt is made of, block by block; empty where the trace does not tell.
    """

    at_s: float
    input_len: int
    output_len: int
    hash_ids: tuple[int, ...] = ()


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


_MOONCAKE = msgspec.json.Decoder(_Mooncake)

Reader = Callable[[Path, IO[str]], Iterator[TraceRow]]


def is_trace(first_line: str) -> bool:
    """Whether a file that begins so is one of the formats."""
    return _reader(first_line) is not None


def read_rows(path: Path) -> Iterator[TraceRow]:
    """Its requests in the file's order, read as they are asked for; those without a prompt or an answer are left out.

    Raises:
        ConfigError: no known format, or a line that does not keep to it; names file and line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = _reader(file.readline().strip())
            if reader is None:
                raise bad_file(path, "line 1", "is of no known trace format", _KNOWN)
            file.seek(0)
            yield from (row for row in reader(path, file) if row.input_len > 0 and row.output_len > 0)
    except UnicodeDecodeError as error:
        raise bad_file(path, "", f"is not UTF-8 ({error.reason})", _KNOWN) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _reader(first_line: str) -> Reader | None:
    columns = {column.strip().strip('"') for column in first_line.split(",")}
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= columns:
        return _azure
    if {"Timestamp", "Request tokens", "Response tokens"} <= columns:
        return _burstgpt
    return _mooncake if first_line.startswith("{") else None


def _azure(path: Path, file: IO[str]) -> Iterator[TraceRow]:
    return _csv(path, file, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _seconds)


def _burstgpt(path: Path, file: IO[str]) -> Iterator[TraceRow]:
    return _csv(path, file, ("Timestamp", "Request tokens", "Response tokens"), float)


def _csv(path: Path, file: IO[str], columns: tuple[str, str, str], seconds: Callable[[str], float]) -> Iterator[TraceRow]:
    when, tokens_in, tokens_out = columns
    rows = csv.DictReader(file, skipinitialspace=True)
    for row in rows:
        try:
            yield TraceRow(_finite(seconds(row[when])), int(row[tokens_in]), int(row[tokens_out]))
        except (ValueError, TypeError) as error:
            raise bad_file(path, f"line {rows.line_num}", f"{list(row.values())}: {error}", f"values of {', '.join(columns)}") from None


def _finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise ValueError(f"the time is {seconds}")
    return seconds


def _seconds(stamp: str) -> float:
    """Of an ISO time with any number of decimals, in UTC where it names no zone."""
    time = datetime.fromisoformat(stamp)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _mooncake(path: Path, file: IO[str]) -> Iterator[TraceRow]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = _MOONCAKE.decode(line)
        except msgspec.DecodeError as error:
            raise bad_file(path, f"line {number}", str(error), 'an object of "timestamp" (ms), "input_length", "output_length"') from None
        yield TraceRow(row.timestamp / 1000, row.input_length, row.output_length, row.hash_ids)
