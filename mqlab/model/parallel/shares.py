"""Who holds which heads, MLP columns and vocabulary rows.

Column-parallel projections (queries, keys, values, gate, up) give each rank the outputs of its own heads and columns; row-parallel ones
(out, down) take these, and are summed over the ranks. Source: Megatron-LM (Shoeybi et al. 2019).

Shares may be uneven: 9 query heads over 3 KV heads are 6 over 2 and 3 over 1 on two ranks. Where there are more ranks than KV heads, each
is held by several ranks, which share its queries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from mqlab.errors import ConfigError
from mqlab.model.architecture import Architecture

if TYPE_CHECKING:
    from mqlab.model.making import Group

_UNIT = 16
"""MLP columns and vocabulary rows are dealt out in lots of so many, where there are lots enough: what a row of a weight is aligned to."""


@dataclass(frozen=True)
class Share:
    """What one rank holds of every layer, as ranges of the whole.

    Attributes:
        heads: query heads.
        kv_heads: KV heads; the same one on several ranks where there are more ranks than KV heads.
        inner: columns of the MLP.
        vocab: rows of the output projection.
    """

    heads: slice
    kv_heads: slice
    inner: slice
    vocab: slice


def split(count: int, parts: int, unit: int = 1) -> tuple[int, ...]:
    """``count`` as ``parts`` widths, none wider than another by more than ``unit``: multiples of it where there are as many, what is left
    over being the last one's."""
    lots, rest = divmod(count, unit)
    if lots < parts:
        lots, rest, unit = count, 0, 1
    each, more = divmod(lots, parts)
    widths = [(each + (part < more)) * unit for part in range(parts)]
    widths[-1] += rest
    return tuple(widths)


def shares_of(arch: Architecture, size: int) -> tuple[Share, ...]:
    """Each rank's share.

    Raises:
        ConfigError: the model cannot be dealt out to so many.
    """
    heads, kv_heads = _heads(arch, size)
    inner, vocab = (_slices(split(count, size, _UNIT)) for count in (arch.intermediate, arch.vocab))
    return tuple(Share(*one) for one in zip(heads, kv_heads, inner, vocab, strict=True))


def share_of(arch: Architecture, group: Group) -> Share:
    """That of this rank.

    Raises:
        ConfigError: as ``shares_of``.
    """
    return shares_of(arch, group.size)[group.rank]


def local(arch: Architecture, group: Group) -> Architecture:
    """The decoder's shape on this rank: its own heads, KV heads and MLP columns; all else is the whole's.

    Raises:
        ConfigError: as ``shares_of``.
    """
    share = share_of(arch, group)
    return replace(arch, heads=width(share.heads), kv_heads=width(share.kv_heads), intermediate=width(share.inner))


def vocab_widths(arch: Architecture, group: Group) -> tuple[int, ...]:
    """Rows of the output projection that each rank holds."""
    return split(arch.vocab, group.size, _UNIT)


def width(part: slice) -> int:
    """How many it is."""
    return part.stop - part.start


def rows(part: slice, unit: int) -> slice:
    """The rows of a weight that belong to these heads, of ``unit`` rows each."""
    return slice(part.start * unit, part.stop * unit)


def _heads(arch: Architecture, size: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Query heads and KV heads of each rank."""
    queries = arch.heads // arch.kv_heads  # of each KV head
    if size <= arch.kv_heads:
        kv = _slices(split(arch.kv_heads, size))
        return tuple(rows(part, queries) for part in kv), kv
    copies, rest = divmod(size, arch.kv_heads)
    if rest or copies > queries:
        raise ConfigError(
            f"--tensor-parallel-size={size} does not suit {arch.name}, which has {arch.heads} query and {arch.kv_heads} KV heads: "
            f"pass at most {arch.kv_heads}, or a multiple of it up to {arch.heads}, so that each KV head has ranks of its own"
        )
    return _slices(split(queries, copies) * arch.kv_heads), tuple(slice(rank // copies, rank // copies + 1) for rank in range(size))


def _slices(widths: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in pairwise(accumulate(widths, initial=0)))
