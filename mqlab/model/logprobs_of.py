"""Logprobs, ranks and likeliest tokens of a batch's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mqlab_kernels.logprobs_cpu import logprobs
from mqlab_kernels.race_cpu import ALL

from mqlab.logprobs import Logprobs
from mqlab.model.attention import KERNELS
from mqlab.model.rows import Rows


@dataclass(frozen=True, slots=True)
class Question:
    """Whose logprobs are asked for.

    Attributes:
        rows: [n] int64.
        tokens: [n] int64, one of each row.
        counts: how many of the likeliest to tell with it; -1 for all.
    """

    rows: np.ndarray
    tokens: np.ndarray
    counts: Sequence[int | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """From what distribution n rows are told: [n] each.

    Attributes:
        scales: float32, 1 / temperature.
        leasts: float32, with ``ends``, int64: the limit (as in race_cpu) outside which a probability is 0.
    """

    scales: np.ndarray
    leasts: np.ndarray
    ends: np.ndarray

    @staticmethod
    def none(count: int) -> Limits:
        """The model's own."""
        return Limits(np.ones(count, np.float32), np.full(count, -np.inf, np.float32), np.full(count, ALL, np.int64))


def ask(rows: Rows, question: Question, limits: Limits | None = None) -> Logprobs:
    """All of them as one; the counts are equal."""
    tokens, values, ranks, _ = _tell(rows, question, limits)
    return Logprobs.pack(tokens, values, ranks)


def ask_each(rows: Rows, question: Question, limits: Limits | None = None) -> list[Logprobs]:
    """Each by itself."""
    tokens, values, ranks, counts = _tell(rows, question, limits)
    return [
        Logprobs.pack(tokens[i : i + 1, : 1 + count], values[i : i + 1, : 1 + count], ranks[i : i + 1])
        for i, count in enumerate(counts.tolist())
    ]


def _tell(rows: Rows, question: Question, limits: Limits | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """tokens int32 and values float32 [n, 1 + max(counts)], ranks int32 [n], counts int64 [n]."""
    count, vocab = len(question.rows), rows.logits.shape[1]
    counts = np.array(question.counts, np.int64)
    counts = np.where((counts < 0) | (counts > vocab), vocab, counts)
    shape = count, 1 + int(counts.max(initial=0))
    tokens, values, ranks = np.empty(shape, np.int32), np.empty(shape, np.float32), np.empty(count, np.int32)
    limits = limits or Limits.none(count)
    tops = rows.tops[question.rows]
    with KERNELS:
        logprobs(
            rows.logits,
            rows.peaks,
            question.rows,
            tops,
            limits.scales,
            limits.leasts,
            limits.ends,
            question.tokens,
            counts,
            tokens,
            values,
            ranks,
        )
    return tokens, values, ranks, counts
