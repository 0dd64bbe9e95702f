"""What is wanted of the hidden states of a prompt: logprobs of its tokens, or their sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from torch import Tensor

from mqlab.logprobs import Logprobs
from mqlab.model.sampler import score
from mqlab.plan import Chunk, Plan, Scored

_ROWS = 64
"""Logits that are held at once, in rows: a long prompt's would take gigabytes."""


def prompt_logprobs(plan: Plan, states: Tensor, head: Callable[[Tensor], Tensor]) -> dict[int, Logprobs]:
    """Of each chunk that is scored, by its row in the plan.

    Args:
        states: [T, hidden], of the whole step, on any device.
        head: hidden states to logits [rows, vocab] float32.
    """
    return {row: _scored(chunk, chunk.scored, states[own], head) for row, chunk, own in _rows(plan) if chunk.scored is not None}


def pooled_states(plan: Plan, states: Tensor) -> dict[int, np.ndarray]:
    """float32 [hidden] of each chunk with a pooling, by its row in the plan: the sum of its states, the last one or the first one."""
    return {row: _pooled(chunk, states[own]) for row, chunk, own in _rows(plan) if chunk.pooling is not None}


def _rows(plan: Plan) -> Iterator[tuple[int, Chunk, slice]]:
    start = 0
    for row, chunk in enumerate(plan.chunks):
        end = start + len(chunk.tokens)
        yield row, chunk, slice(start, end)
        start = end


def _scored(chunk: Chunk, scored: Scored, states: Tensor, head: Callable[[Tensor], Tensor]) -> Logprobs:
    width = chunk.params.prompt_logprobs
    assert width is not None
    targets, parts = scored.targets, []
    for start in range(0, len(targets), _ROWS):
        some = targets[start : start + _ROWS]
        first = scored.row + start
        parts.append(score(head(states[first : first + len(some)]).cpu(), some, width))
    return Logprobs.concat(parts)


def _pooled(chunk: Chunk, states: Tensor) -> np.ndarray:
    if chunk.pooling == "mean":
        return states.float().sum(0).cpu().numpy()
    # A copy, or one row would keep the whole step's states.
    return states[-1 if chunk.pooling == "last" else 0].float().cpu().numpy().copy()
