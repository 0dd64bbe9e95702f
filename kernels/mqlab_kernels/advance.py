"""From the tokens that a step sampled to the next step's inputs, on the device: steps follow each other without the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from mqlab_kernels.capability import capability
from mqlab_kernels.kernel import Case, Config, Kernel


@triton.jit(do_not_specialize=["count", "width", "table_stride"])
def advance_kernel(
    sampled, tokens, positions, slots, contexts, indices, tables, count, width, table_stride,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS sequences. BLOCK, the size of the cache's, is a constant of the case, ROWS one of speed."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = tl.load(slots + rows, mask=rows < count, other=-1) >= 0
    position = tl.load(positions + rows, mask=live, other=0) + 1
    column = position // BLOCK
    block = tl.load(tables + rows.to(tl.int64) * table_stride + column, mask=live & (column < width), other=-1).to(tl.int64)
    room = live & (block >= 0)
    tl.store(slots + rows, tl.where(room, block * BLOCK + position % BLOCK, -1), mask=live)
    tl.store(tokens + rows, tl.maximum(tl.load(sampled + rows, mask=room, other=0), 0), mask=room)
    tl.store(positions + rows, position, mask=room)
    tl.store(contexts + rows, tl.load(contexts + rows, mask=room, other=0) + 1, mask=room)
    tl.store(indices + rows, tl.load(indices + rows, mask=room, other=0) + 1, mask=room)


def advance(
    sampled: Tensor,
    tokens: Tensor,
    positions: Tensor,
    slots: Tensor,
    contexts: Tensor,
    indices: Tensor,
    tables: Tensor,
    block_size: int,
) -> None:
    """Make the inputs of a decode step those of the next, in place.

    A padded row (slot -1) stays as it is. A row whose table has no block for its next token becomes a padded one: its slot is -1 from then
    on, and the rest stays as it is.

    Args:
        sampled: [S] int64, the tokens drawn; below 0, where there was none to draw, counts as 0.
        tokens: [S] int64, the inputs: become ``sampled``.
        positions: [S] int64, of the inputs: 1 more.
        slots: [S] int64, where their keys and values go, block * ``block_size`` + offset.
        contexts: [S] int32, tokens of each sequence, the input included: 1 more.
        indices: [S] int64, of the draw in the sequence's sampling: 1 more.
        tables: [S, max blocks] int32, the blocks of each sequence in order, -1 where there is none.

    Raises:
        ValueError: a tensor that is not contiguous.
    """
    if not all(tensor.is_contiguous() for tensor in (sampled, tokens, positions, slots, contexts, indices)) or tables.stride(-1) != 1:
        raise ValueError("advance writes in place, to contiguous tensors alone")
    (count,), (_, width) = slots.shape, tables.shape
    if not count:
        return
    constants = {"BLOCK": block_size}
    config = choose(constants, capability(slots.device))
    advance_kernel[(triton.cdiv(count, config.constants["ROWS"]),)](
        sampled, tokens, positions, slots, contexts, indices, tables, count, width, tables.stride(0), **constants, **config.options
    )  # fmt: skip


def advance_reference(
    sampled: Tensor,
    tokens: Tensor,
    positions: Tensor,
    slots: Tensor,
    contexts: Tensor,
    indices: Tensor,
    tables: Tensor,
    block_size: int,
) -> None:
    """The same, row by row."""
    for row in range(len(slots)):
        if slots[row] < 0:
            continue
        column, offset = divmod(int(positions[row]) + 1, block_size)
        block = int(tables[row, column]) if column < tables.shape[1] else -1
        if block < 0:
            slots[row] = -1
            continue
        slots[row] = block * block_size + offset
        tokens[row] = max(int(sampled[row]), 0)
        for counter in (positions, contexts, indices):
            counter[row] += 1


SWEEP = tuple(Config(constants={"ROWS": rows}, num_warps=max(rows // 32, 1), num_stages=1) for rows in (32, 64, 128, 256))


def choose(constants: Mapping[str, Any], capability: int) -> Config:
    """The shipped config: a sequence a thread, and few to a program, so that a batch's loads come from several processors."""
    return SWEEP[0]


def _case(block_size: int) -> Case:
    pointers = dict.fromkeys(("sampled", "tokens", "positions", "slots", "indices"), "*i64") | dict.fromkeys(("contexts", "tables"), "*i32")
    return Case(
        name=f"block size {block_size}",
        types={**pointers, "count": "i32", "width": "i32", "table_stride": "i32"},
        constants={"BLOCK": block_size},
        aligned=tuple(pointers),
    )


CASES = tuple(map(_case, (16, 32, 64)))

KERNELS = (Kernel(name="advance", function=advance_kernel, cases=CASES, sweep=SWEEP, choose=choose),)
