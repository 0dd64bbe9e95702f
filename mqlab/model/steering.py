"""What requests ask of their logits before a token is chosen: masks, bans, biases and penalties, of a whole batch at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numba
import numpy as np
from mqlab_kernels.steer_cpu import add, allow, look_again, penalise

from mqlab.model.attention import KERNELS
from mqlab.model.rows import Rows
from mqlab.plan import Chunk

_BANNING_BIAS = -100


@dataclass(slots=True)
class Additions:
    """What is added to single logits: three lists of one length."""

    rows: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def put(self, row: int, tokens: Iterable[int], values: list[float]) -> None:
        """Add to tokens of one row."""
        self.rows += [row] * len(values)
        self.tokens += tokens
        self.values += values


def steers(chunk: Chunk) -> bool:
    """Whether anything is to be done to a chunk's row."""
    params = chunk.params
    return chunk.mask is not None or bool(chunk.banned or params.logit_bias) or (len(chunk.history) > 0 and params.penalised)


@dataclass(frozen=True, slots=True)
class Steering:
    """What is to be done to the rows of a batch, in this order.

    Attributes:
        masks: by row.
        additions: bans, as -inf, and biases.
        penalised: (row, its chunk).
    """

    masks: dict[int, np.ndarray] = field(default_factory=dict)
    additions: Additions = field(default_factory=Additions)
    penalised: list[tuple[int, Chunk]] = field(default_factory=list)

    @staticmethod
    def of(chunks: tuple[Chunk, ...]) -> Steering:
        """What these chunks ask for, one a row."""
        steering = Steering()
        for row, chunk in enumerate(chunks):
            params = chunk.params
            if chunk.mask is not None:
                steering.masks[row] = chunk.mask
            if chunk.banned:
                steering.additions.put(row, chunk.banned, [-math.inf] * len(chunk.banned))
            if params.logit_bias:
                steering.additions.put(row, params.logit_bias, [_shift(bias) for bias in params.logit_bias.values()])
            if len(chunk.history) and params.penalised:
                steering.penalised.append((row, chunk))
        return steering

    @property
    def touched(self) -> set[int]:
        """The rows that it changes."""
        return {*self.masks, *self.additions.rows, *(row for row, _ in self.penalised)}

    def apply(self, rows: Rows) -> None:
        """Do it, in place; ``peaks`` and ``likeliest`` are kept in step."""
        touched = self.touched
        if not touched:
            return
        with KERNELS:
            if self.masks:
                allow(rows.logits, rows.peaks, np.array([*self.masks]), self._mask_table(rows.logits.shape[1]))
            if self.additions.rows:
                at, tokens, values = self.additions.rows, self.additions.tokens, self.additions.values
                add(rows.logits, rows.peaks, np.array(at), np.array(tokens), np.array(values, np.float32))
            if self.penalised:
                penalise(rows.logits, rows.peaks, *self._penalties())
            look_again(rows.logits, rows.peaks, np.array([*touched]), rows.likeliest)

    def _mask_table(self, vocab: int) -> np.ndarray:
        """[n, words] uint32; what lies beyond the end of a mask is banned."""
        words = -(-vocab // 32)
        table = np.zeros((len(self.masks), words), np.uint32)
        for line, mask in zip(table, self.masks.values(), strict=True):
            line[: len(mask)] = mask[:words]
        return table

    def _penalties(self) -> tuple[Any, ...]:
        """The arguments of ``penalise`` from ``rows`` on."""
        histories = [np.asarray(chunk.history, np.int32) for _, chunk in self.penalised]
        params = [chunk.params for _, chunk in self.penalised]
        return (
            np.array([row for row, _ in self.penalised]),
            np.concatenate(histories),
            np.array([0, *accumulate(map(len, histories))]),
            np.array([chunk.num_prompt for _, chunk in self.penalised]),
            np.array([one.repetition_penalty for one in params], np.float64),
            np.array([one.frequency_penalty for one in params], np.float64),
            np.array([one.presence_penalty for one in params], np.float64),
            min(len(params), numba.get_num_threads()),
        )


def _shift(bias: float) -> float:
    return -math.inf if bias <= _BANNING_BIAS else bias
