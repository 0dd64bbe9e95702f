"""A KV cache of more than 2**32 elements, of which only what is touched takes memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import GridExecutor

BLOCK, SIZE, KV_HEADS = 16, 64, 2
ELEMENTS = 2 * KV_HEADS * BLOCK * SIZE
"""Elements of a block's keys and values: between one block's keys and the next one's."""
LAST = 2**32 // ELEMENTS + 1
"""Blocks in 2**32 elements, and one."""
FAR = {"across 2**31": 2**31 // ELEMENTS - 1, "past 2**31": 2**31 // ELEMENTS, "past 2**32": LAST - 2}
"""The first of three blocks that are far away."""


def far_pools(monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """Keys and values in one pool of 8 GiB, for launches until the end of a test."""
    # The interpreter copies every argument back from the host, here over itself: that would touch all of it.
    monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda *_: None)
    pool = torch.empty((LAST + 1, 2, KV_HEADS, BLOCK, SIZE), dtype=torch.bfloat16)
    return pool[:, 0], pool[:, 1]
