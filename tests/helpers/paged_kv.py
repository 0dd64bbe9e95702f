"""Queries over a paged KV cache, hostile to kernels that read or write what is not theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from mqlab_kernels import interpreter
from torch import Tensor

interpreter.patch()

NOWHERE = 2**31 - 1
TOLERANCES = {
    torch.float32: (1e-5, 0.0),
    torch.float16: (1e-3, 2**-10),
    torch.bfloat16: (2e-3, 2**-8),
}
"""Absolute and relative error that is rounding, for values in (-1, 1)."""


@dataclass(frozen=True, repr=False)
class Paged:
    """Arguments of a decode kernel.

    Slots that no token has hold NaN, table entries past a context a block far outside the pool, which has no block more than it needs;
    queries are a view into a fused projection.
    """

    q: Tensor
    keys: Tensor
    values: Tensor
    tables: Tensor
    contexts: Tensor

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return self.q, self.keys, self.values, self.tables, self.contexts

    def __repr__(self) -> str:
        return f"Paged(q {list(self.q.shape)} {self.q.dtype}, keys {list(self.keys.shape)}, contexts {self.contexts.tolist()})"


def paged(
    contexts: Sequence[int], *, kv_heads: int, group: int, size: int, block: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Paged:
    """A decode step of sequences with these contexts, 0 for a padded row."""
    random = torch.Generator().manual_seed(seed)
    tables = scattered_tables(contexts, block, random)
    slots = torch.cat([slots_of(tables[row], context, block) for row, context in enumerate(contexts)])
    keys, values = (torch.full((blocks_in(contexts, block), kv_heads, block, size), torch.nan, dtype=dtype) for _ in range(2))
    for cache in (keys, values):
        cache[slots // block, :, slots % block] = uniform((len(slots), kv_heads, size), random).to(dtype)
    heads = kv_heads * group
    fused = uniform((len(contexts), heads + 3, size), random).to(dtype) * 4
    return Paged(fused[:, 1 : 1 + heads], keys, values, tables, torch.tensor(contexts, dtype=torch.int32))


def uniform(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Between -1 and 1."""
    return torch.rand(shape, generator=random) * 2 - 1


def blocks_in(contexts: Sequence[int], block: int) -> int:
    """Blocks of a pool that holds these contexts and no more; one at least, for none has no address."""
    return max(1, sum(-(-context // block) for context in contexts))


def scattered_tables(contexts: Sequence[int], block: int, random: torch.Generator) -> Tensor:
    """Block tables with the pool's blocks in any order; NOWHERE past a context."""
    pool = torch.randperm(blocks_in(contexts, block), generator=random).int()
    needed = [-(-context // block) for context in contexts]
    tables = torch.full((len(contexts), max(1, *needed)), NOWHERE, dtype=torch.int32)
    for row, (count, mine) in enumerate(zip(needed, pool[: sum(needed)].split(needed), strict=True)):
        tables[row, :count] = mine
    return tables


def slots_of(table: Tensor, context: int, block: int) -> Tensor:
    """Slots of a sequence's tokens: [context] int64."""
    places = torch.arange(context)
    return table[places // block].long() * block + places % block


def guarded(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(canaries all around, the view between them): room for an answer of this shape, each row apart from the next."""
    whole = torch.full((shape[0] + 2, shape[1] + 2, *shape[2:]), 7.0, dtype=dtype)
    return whole, whole[1:-1, 1:-1]


def canaries_live(whole: Tensor) -> bool:
    """Whether nothing was written around the view of ``guarded``."""
    edges = (whole[0], whole[-1], whole[1:-1, 0], whole[1:-1, -1])
    return all(bool((edge == 7.0).all()) for edge in edges)


def assert_close(answer: Tensor, expected: Tensor, *, absolutely: bool = False) -> None:
    """Equal to a float64 reference but for rounding in the answer's dtype; NaN is never right."""
    atol, rtol = TOLERANCES[answer.dtype]
    torch.testing.assert_close(answer.double(), expected, atol=atol, rtol=0.0 if absolutely else rtol)
