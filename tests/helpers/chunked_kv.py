"""Chunks of prompts over a paged KV cache, hostile to kernels that read or write what is not theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from mqlab_kernels.prefill_attention import prefill_attention, prefill_attention_reference
from paged_kv import assert_close, canaries_live, guarded, paged, uniform
from torch import Tensor


@dataclass(frozen=True)
class Chunked:
    """Arguments of the prefill kernel; the cache and its tables are as hostile as ``paged_kv.Paged`` has them."""

    q: Tensor
    keys: Tensor
    values: Tensor
    tables: Tensor
    query_starts: Tensor
    contexts: Tensor

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return self.q, self.keys, self.values, self.tables, self.query_starts, self.contexts

    @property
    def longest(self) -> int:
        return int(self.query_starts.diff().max())

    def only(self, row: int, first: int, last: int) -> Chunked:
        """Queries first to last of one chunk, as a chunk by themselves."""
        start, end = self.query_starts[row : row + 2].tolist()
        return replace(
            self,
            q=self.q[start + first : start + last],
            tables=self.tables[row : row + 1],
            query_starts=torch.tensor([0, last - first], dtype=torch.int32),
            contexts=self.contexts[row : row + 1] - (end - start - last),
        )


def chunked(
    chunks: Sequence[tuple[int, int]],
    *,
    kv_heads: int,
    group: int,
    size: int,
    block: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Chunked:
    """Chunks of (queries, context up to their end); queries are a view into a fused projection."""
    cache = paged([context for _, context in chunks], kv_heads=kv_heads, group=1, size=size, block=block, dtype=dtype, seed=seed)
    starts = torch.tensor([0, *(count for count, _ in chunks)]).cumsum(0).int()
    heads = kv_heads * group
    fused = uniform((int(starts[-1]), heads + 2, size), torch.Generator().manual_seed(seed + 1)).to(dtype) * 4
    return Chunked(fused[:, 1 : 1 + heads], cache.keys, cache.values, cache.tables, starts, cache.contexts)


def attend(case: Chunked, **options: Any) -> Tensor:
    """The kernel's answer; nothing around it is touched."""
    whole, out = guarded(tuple(case.q.shape), case.q.dtype)
    answer = prefill_attention(*case.arguments, max_query=case.longest, out=out, **options)
    assert answer is out
    assert canaries_live(whole)
    return answer


def check_prefill(case: Chunked, *, absolutely: bool = False, **options: Any) -> None:
    """The answer is the reference's."""
    expected = prefill_attention_reference(*case.arguments, max_query=case.longest, **options)
    assert_close(attend(case, **options), expected, absolutely=absolutely)
