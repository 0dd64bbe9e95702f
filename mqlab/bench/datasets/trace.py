"""Traces as workloads: the recorded arrivals and lengths, with prompts made up so that shared prefixes are shared again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from mqlab.bench.datasets.sample import Encoder, Sample, plain_ids
from mqlab.bench.datasets.trace_formats import TraceRow, read_rows
from mqlab.bench.options import DatasetConfig
from mqlab.errors import ConfigError

_log = logging.getLogger(__name__)


def trace_samples(config: DatasetConfig, tokenizer: Encoder, count: int, rng: np.random.Generator) -> list[Sample]:
    """At most ``count`` requests of the trace, by time; the first one at 0 s.

    Equal hash ids become equal blocks of ids, so a prefix cache hits where it would have; prompts of traces without them are fresh.

    Raises:
        ConfigError: the file cannot be used.
    """
    path = Path(config.dataset_path or "")
    rows = sorted(islice(_window(path, config), count), key=lambda row: row.at_s)
    if not rows:
        until = "" if config.trace_seconds is None else f" and --trace-seconds={config.trace_seconds:g}"
        raise ConfigError(f"{path} has no requests after --trace-start={config.trace_start:g}{until}")
    rows = _cut(rows, config.trace_max_input_len, config.trace_max_output_len)
    prompts = _Prompts(plain_ids(tokenizer), config.trace_block_size, rng)
    times = _times([row.at_s for row in rows], config)
    return [Sample(prompts.of(row), row.input_len, row.output_len, at) for row, at in zip(rows, times, strict=True)]


def _window(path: Path, config: DatasetConfig) -> Iterator[TraceRow]:
    """The part of the trace that was asked for, by the time since its first row."""
    first = None
    for row in read_rows(path):
        first = row.at_s if first is None else first
        since = row.at_s - first - config.trace_start
        if since >= 0 and (config.trace_seconds is None or since < config.trace_seconds):
            yield row


def _cut(rows: list[TraceRow], max_input: int | None, max_output: int | None) -> list[TraceRow]:
    cut = [
        replace(row, input_len=min(row.input_len, max_input or row.input_len), output_len=min(row.output_len, max_output or row.output_len))
        for row in rows
    ]
    changed = sum(before != after for before, after in zip(rows, cut, strict=True))
    if changed:
        _log.warning("%d of %d requests of the trace are cut to --trace-max-input-len or --trace-max-output-len", changed, len(rows))
    return cut


def _times(stamps: Sequence[float], config: DatasetConfig) -> list[float]:
    """Seconds since the first, stretched as asked."""
    span = stamps[-1] - stamps[0]
    stretch = config.trace_stretch
    if config.trace_rate is not None and span > 0:
        stretch = (len(stamps) - 1) / span / config.trace_rate
    return [(stamp - stamps[0]) * stretch for stamp in stamps]


class _Prompts:
    """Made-up prompts; a hash id always stands for the same block of ids."""

    def __init__(self, ids: np.ndarray, block_size: int, rng: np.random.Generator) -> None:
        self._ids = ids
        self._block_size = block_size
        self._rng = rng
        self._blocks: dict[int, tuple[int, ...]] = {}

    def of(self, row: TraceRow) -> tuple[int, ...]:
        """``row.input_len`` ids; what its hash ids do not cover is fresh."""
        shared = [i for hash_id in row.hash_ids for i in self._block(hash_id)][: row.input_len]
        return (*shared, *self._fresh(row.input_len - len(shared)))

    def _block(self, hash_id: int) -> tuple[int, ...]:
        if hash_id not in self._blocks:
            self._blocks[hash_id] = self._fresh(self._block_size)
        return self._blocks[hash_id]

    def _fresh(self, length: int) -> tuple[int, ...]:
        return tuple(self._rng.choice(self._ids, size=length).tolist())
