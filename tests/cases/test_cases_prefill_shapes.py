"""Head sizes no powers of two, odd ratios of query to KV heads, odd block sizes: prefill is right and touches nothing else (C69)."""

from __future__ import annotations

from itertools import cycle, product

import pytest
import torch
from chunked_kv import check_prefill, chunked

SIZES, RATIOS, BLOCKS = (32, 64, 80, 96, 112, 128, 192), (1, 3, 5, 7, 8), (1, 8, 16, 32, 48)
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
SAMPLE = [(32, 8, 48), (64, 3, 16), (80, 1, 32), (96, 7, 1), (112, 5, 8), (128, 3, 48), (192, 7, 16)]


@pytest.mark.parametrize(("size", "ratio", "block"), SAMPLE)
def test_a_mixed_batch(size: int, ratio: int, block: int) -> None:
    """One token, prompts up to a block's edge and over it, and a later chunk; decode steps among them."""
    chunks = [(1, 1), (max(1, block - 1), max(1, block - 1)), (1, block), (2, block + 1), (20, 257)]
    check_prefill(chunked(chunks, kv_heads=1, group=ratio, size=size, block=block, dtype=torch.bfloat16), scale=size**-0.5)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
def test_mixed_batches_of_every_shape(size: int) -> None:
    """The types of elements take turns."""
    for (ratio, block), dtype in zip(product(RATIOS, BLOCKS), cycle(DTYPES), strict=False):
        whole = [(length, length) for length in (1, block - 1, block, block + 1) if length] + [(1, 257), (40, 257)]
        check_prefill(chunked(whole, kv_heads=2, group=ratio, size=size, block=block, dtype=dtype), scale=size**-0.5)
