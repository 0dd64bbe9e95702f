"""Logits become tokens. A draw depends on the request's own logits, parameters, seed and output index, on nothing else.

The order is vLLM's (V1): masks, bans and biases, penalties, then greedy or temperature, min_p, top_k, top_p and the draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mqlab.logprobs import Logprobs
from mqlab.model.draw import Draws
from mqlab.model.logprobs_of import Question, ask, ask_each
from mqlab.model.rows import Rows
from mqlab.model.steering import Steering
from mqlab.plan import Chunk


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the sampler made of a batch.

    Attributes:
        tokens: one a row; -1 where every token was masked.
        logprobs: of the tokens, where asked for; None where no row asked.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[Logprobs | None, ...] | None = None


class Sampler:
    """Chooses one token for each row of logits.

    Args:
        logprobs_mode: ``raw_logprobs`` tells what the model said; ``processed_logprobs`` what was drawn from: after masks, bans, biases and
            penalties, and, unless greedy, after temperature, min_p, top_k and top_p.
    """

    def __init__(self, logprobs_mode: str = "raw_logprobs") -> None:
        self._processed = logprobs_mode == "processed_logprobs"

    def __call__(self, logits: Tensor, chunks: tuple[Chunk, ...]) -> Sampled:
        """One token a row.

        Args:
            logits: [S, vocab] float32, changed in place.
            chunks: the S chunks that the rows belong to.

        Raises:
            RuntimeError: the largest logit of a row is not a number or not finite, before any mask.
        """
        if not chunks:
            return Sampled(())
        rows = Rows.of(logits)
        _check_finite(rows, chunks)
        asked = np.array([row for row, chunk in enumerate(chunks) if chunk.params.logprobs is not None], np.int64)
        steering = Steering.of(chunks)
        # What the model said is kept from what is done to it.
        kept = not self._processed and not steering.touched.isdisjoint(asked.tolist())
        said, at = (rows.copy(asked), np.arange(len(asked))) if kept else (rows, asked)
        steering.apply(rows)
        draws = Draws.of(rows, chunks)
        tokens = draws.tokens(rows)
        if not len(asked):
            return Sampled(tuple(tokens.tolist()))
        question = Question(at, np.maximum(tokens[asked], 0), [chunks[row].params.logprobs for row in asked.tolist()])
        answers = ask_each(said, question, draws.limits(rows, asked, tokens) if self._processed else None)
        by_row = {row: answer for row, answer in zip(asked.tolist(), answers, strict=True) if tokens[row] >= 0}
        return Sampled(tuple(tokens.tolist()), tuple(map(by_row.get, range(len(chunks)))))


def score(logits: Tensor, targets: Sequence[int], width: int) -> Logprobs:
    """The logprobs of given tokens, as the model says them.

    Args:
        logits: [R, vocab] float32.
        targets: R token ids.
        width: how many of the likeliest tokens to tell with each; -1 for all.

    Raises:
        RuntimeError: the largest logit of a row is not a number or not finite.
    """
    rows = Rows.of(logits)
    for row in rows.broken():
        raise RuntimeError(f"row {row} of {len(targets)}: the largest logit is {rows.tops[row]}; the model's weights are broken")
    return ask(rows, Question(np.arange(len(targets)), np.array(targets, np.int64), [width] * len(targets)))


def _check_finite(rows: Rows, chunks: tuple[Chunk, ...]) -> None:
    for row in rows.broken():
        raise broken_logits(chunks[row], 0, rows.tops[row])


def broken_logits(chunk: Chunk, number: int, top: float) -> RuntimeError:
    """What to raise where the largest logit of a chunk, in round ``number`` of its plan, is ``top``, which is no finite number."""
    where = f"request {chunk.id!r}, output {chunk.output_index + number}"
    return RuntimeError(f"{where}: the largest logit is {top}; the model's weights are broken")
