"""Head sizes no powers of two, odd ratios of query to KV heads, odd block sizes: decode is right and touches nothing else (C69)."""

from __future__ import annotations

from itertools import cycle, product

import pytest
import torch
from mqlab_kernels.paged_decode import paged_decode, paged_decode_reference
from mqlab_kernels.reshape_cache import reshape_and_cache
from paged_kv import Paged, assert_close, canaries_live, guarded, paged, slots_of

SIZES, RATIOS, BLOCKS = (32, 64, 80, 96, 112, 128, 192), (1, 3, 5, 7, 8), (1, 8, 16, 32, 48)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SAMPLE = [(32, 8, 48), (64, 3, 16), (80, 1, 32), (96, 7, 1), (112, 5, 8), (128, 3, 48), (192, 7, 16)]


@pytest.mark.parametrize(("size", "ratio", "block"), SAMPLE)
def test_a_mixed_batch(size: int, ratio: int, block: int) -> None:
    write_and_decode(size, ratio, block, kv_heads=1, dtype=torch.bfloat16)


@pytest.mark.full
@pytest.mark.parametrize("size", SIZES)
def test_mixed_batches_of_every_shape(size: int) -> None:
    for (ratio, block), dtype in zip(product(RATIOS, BLOCKS), cycle(DTYPES), strict=False):
        write_and_decode(size, ratio, block, kv_heads=3 if ratio == 3 else 1, dtype=dtype)


def write_and_decode(size: int, ratio: int, block: int, *, kv_heads: int, dtype: torch.dtype) -> None:
    """A step of rows around the edges of a block, and of a tile: write each row's last token, then attend."""
    case = paged([1, block - 1, block, block + 1, 257], kv_heads=kv_heads, group=ratio, size=size, block=block, dtype=dtype)
    write_last_tokens(case)
    whole, out = guarded(tuple(case.q.shape), dtype)
    paged_decode(*case.arguments, scale=size**-0.5, out=out)
    assert_close(out, paged_decode_reference(*case.arguments, scale=size**-0.5))
    assert canaries_live(whole)


def write_last_tokens(case: Paged) -> None:
    """Forget each row's last token and write it anew: then the whole pool is what it was, slots without a token among it."""
    block, pools = case.keys.shape[2], (case.keys, case.values)
    contexts = zip(case.tables, case.contexts.tolist(), strict=True)
    slots = torch.tensor([int(slots_of(table, context, block)[-1]) if context else -1 for table, context in contexts])
    blocks, offsets = slots[slots >= 0] // block, slots[slots >= 0] % block
    before = [pool.clone() for pool in pools]
    written = [torch.zeros(len(slots), *pool.shape[1::2], dtype=pool.dtype) for pool in pools]
    for pool, tokens in zip(pools, written, strict=True):
        tokens[slots >= 0] = pool[blocks, :, offsets]
        pool[blocks, :, offsets] = torch.nan
    reshape_and_cache(*written, *pools, slots)
    for pool, expected in zip(pools, before, strict=True):
        torch.testing.assert_close(pool, expected, rtol=0, atol=0, equal_nan=True)
