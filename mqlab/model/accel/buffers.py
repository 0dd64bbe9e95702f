"""A step's numbers on their way to the device: packed into one buffer, moved by one copy."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from mqlab.model.accel.accelerator import Accelerator
from mqlab.model.accel.backends.operations import Decodes, Prefills
from mqlab.model.accel.tables import Tables
from mqlab.plan import Chunk, Plan

_ALIGN = 16
_IN_FLIGHT = 2


@dataclass(frozen=True)
class Batch:
    """One step over T tokens, on the device.

    Attributes:
        tokens, positions, slots: [T] int64; a slot of -1 stores nothing.
        decodes: of the first tokens, those of chunks with one token each; None where there are none.
        prefills: of the tokens behind them.
        singles: how many are of ``decodes``.
        logit_rows: [R] int64, the tokens whose logits are drawn from; None where that is all of them.
        draws: R.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    decodes: Decodes | None
    prefills: Prefills | None
    singles: int
    logit_rows: Tensor | None
    draws: int


@dataclass(frozen=True)
class Limits:
    """What a step holds at most.

    Attributes:
        tokens: of all its chunks.
        rows: chunks, and rows of a graph.
        blocks: of a sequence.
        block_size: tokens a block.
    """

    tokens: int
    rows: int
    blocks: int
    block_size: int

    @property
    def entries(self) -> int:
        """Block-table entries that a step can bring one by one: of the blocks that its tokens begin, and of those for rounds to come."""
        return self.tokens // self.block_size + 2 * self.rows


class Sections:
    """The parts of a buffer, each at a place that never changes, as views of one memory.

    Attributes:
        tokens, positions, slots, logit_rows: [tokens] int64.
        follow_places, follow_rows: [rows] int64: tokens that are still on the device, and whose they are among those sampled last.
        rounds: [rows] int64, how often a row runs.
        entries: [entries] int64, of the block tables those that change; ``entry_blocks``: [entries] int32, to what.
        contexts: [rows] int32.
        starts: [rows + 1] int32.
    """

    NAMES = (
        *("tokens", "positions", "slots", "logit_rows", "follow_places", "follow_rows", "rounds"),
        *("entries", "entry_blocks", "contexts", "starts"),
    )

    def __init__(self, memory: Tensor, limits: Limits) -> None:
        self._memory, self._at = memory, 0
        tokens, rows = limits.tokens, limits.rows
        self.tokens, self.positions, self.slots, self.logit_rows = (self._take(torch.int64, tokens) for _ in range(4))
        self.follow_places, self.follow_rows, self.rounds = (self._take(torch.int64, rows) for _ in range(3))
        self.entries, self.entry_blocks = self._take(torch.int64, limits.entries), self._take(torch.int32, limits.entries)
        self.contexts, self.starts = self._take(torch.int32, rows), self._take(torch.int32, rows + 1)

    @staticmethod
    def size(limits: Limits) -> int:
        """Bytes that are enough."""
        longs = 4 * limits.tokens + 3 * limits.rows + limits.entries
        return 8 * longs + 4 * (limits.entries + 2 * limits.rows + 1) + len(Sections.NAMES) * _ALIGN

    def _take(self, dtype: torch.dtype, count: int) -> Tensor:
        begin = self._at
        end = begin + count * dtype.itemsize
        self._at = -(-end // _ALIGN) * _ALIGN
        return self._memory[begin:end].view(dtype)


class Staging:
    """Pinned memory that one step is packed in.

    Attributes:
        memory: all of it.
        at: its sections by name, as numpy sees them.
        moved: passed when the device has read it.
    """

    def __init__(self, accelerator: Accelerator, limits: Limits) -> None:
        self.memory = accelerator.pinned(Sections.size(limits), torch.uint8)
        sections = Sections(self.memory, limits)
        self.at = {name: getattr(sections, name).numpy() for name in Sections.NAMES}
        self.moved = accelerator.event()

    def put(self, name: str, values: Sequence[int] | np.ndarray) -> int:
        """Write the beginning of a section. Returns how many numbers it is."""
        self.at[name][: len(values)] = values
        return len(values)


class StepBuffers:
    """The device's copy of a step, at addresses that a graph can hold, and where it is packed before.

    Two steps may be in flight, so it is packed in two places in turns; the device's own is written in the order of its stream.

    Attributes:
        device: the sections there.
        tables: [rows, blocks] int32 on the device, each row's blocks.
        last: [tokens] int64 on the device, the draws of the step before; without drafts, the last token of each of its sampling chunks.
    """

    def __init__(self, accelerator: Accelerator, limits: Limits) -> None:
        self.limits = limits
        self._memory = torch.zeros(Sections.size(limits), dtype=torch.uint8, device=accelerator.device)
        self.device = Sections(self._memory, limits)
        self.device.slots.fill_(-1)
        self._tables = Tables(accelerator, limits.rows, limits.blocks)
        self.tables = self._tables.device
        self.last = torch.zeros(limits.tokens, dtype=torch.int64, device=accelerator.device)
        self._stagings = deque(Staging(accelerator, limits) for _ in range(_IN_FLIGHT))

    def graph_batch(self, size: int) -> Batch:
        """A step of ``size`` decodes, as a graph sees it."""
        own = self.device
        decodes = Decodes(self.tables[:size], own.contexts[:size])
        return Batch(own.tokens[:size], own.positions[:size], own.slots[:size], decodes, None, size, None, size)

    def load(self, plan: Plan, padded: int | None = None) -> Batch:
        """Pack a plan, and enqueue its copy to the device.

        Args:
            padded: rows of the graph that will run it, all of whose chunks are of one token and sample; None without a graph.
        """
        staging, chunks = self._stagings[0], plan.chunks
        self._stagings.rotate()
        staging.moved.wait()
        lengths = [len(chunk.tokens) for chunk in chunks]
        changed = self._tables.put(chunks)
        _put_tokens(staging, chunks, lengths, self._tables.host, self.limits.block_size)
        if padded is None:
            batch = self._batch(staging, chunks, lengths)
        else:
            _pad(staging, len(chunks), padded)
            batch = self.graph_batch(padded)
        followed = _put_follows(staging, chunks, lengths)
        self._move(staging, changed, len(chunks))
        if followed:
            self._follow(followed)
        return batch

    def _move(self, staging: Staging, changed: np.ndarray, rows: int) -> None:
        """Enqueue the copy, and what it says of the block tables."""
        count, own = len(changed), self.device
        fits = count <= self.limits.entries
        if fits:
            staging.put("entries", changed)
            staging.put("entry_blocks", self._tables.blocks_in(changed))
        self._memory.copy_(staging.memory, non_blocking=True)
        staging.moved.record()
        if not fits:
            self._tables.move(rows)
        elif count:
            self._tables.change(own.entries[:count], own.entry_blocks[:count])

    def _follow(self, count: int) -> None:
        """Fill in the tokens that the step before has left on the device."""
        own = self.device
        tokens = self.last.index_select(0, own.follow_rows[:count]).clamp_(min=0)
        own.tokens.index_copy_(0, own.follow_places[:count], tokens)

    def _batch(self, staging: Staging, chunks: tuple[Chunk, ...], lengths: list[int]) -> Batch:
        own, count, tokens = self.device, len(chunks), sum(lengths)
        singles = next((row for row, length in enumerate(lengths) if length > 1), count)
        rows = _logit_rows(chunks, lengths)
        width = -(-max([chunk.end + chunk.rounds - 1 for chunk in chunks]) // self.limits.block_size)
        tables, taken = self.tables[:, :width], staging.put("logit_rows", rows)
        return Batch(
            tokens=own.tokens[:tokens],
            positions=own.positions[:tokens],
            slots=own.slots[:tokens],
            decodes=Decodes(tables[:singles], own.contexts[:singles]) if singles else None,
            prefills=self._prefills(staging, chunks[singles:], lengths[singles:], tables, singles) if singles < count else None,
            singles=singles,
            logit_rows=None if taken == tokens else own.logit_rows[:taken],
            draws=taken,
        )

    def _prefills(self, staging: Staging, chunks: tuple[Chunk, ...], lengths: list[int], tables: Tensor, first: int) -> Prefills:
        """Of these chunks, which are the rows from ``first`` on."""
        own, rows = self.device, slice(first, first + len(chunks))
        count = staging.put("starts", [0, *accumulate(lengths)])
        return Prefills(tables[rows], own.contexts[rows], own.starts[:count], tuple(lengths), tuple([chunk.end for chunk in chunks]))


def _put_tokens(staging: Staging, chunks: tuple[Chunk, ...], lengths: list[int], tables: np.ndarray, block_size: int) -> None:
    count, ends = len(chunks), np.array([chunk.end for chunk in chunks])
    staging.put("contexts", ends)
    staging.put("rounds", [chunk.rounds for chunk in chunks])
    if sum(lengths) == count:
        rows, positions = np.arange(count), ends - 1
        tokens = np.array([chunk.tokens[0] for chunk in chunks])
    else:
        rows = np.repeat(np.arange(count), lengths)
        positions = np.arange(len(rows)) + (ends - np.cumsum(lengths))[rows]
        tokens = np.array([token for chunk in chunks for token in chunk.tokens])
    # A draw of a request that had nothing to choose from is -1; what comes after it is not used.
    staging.put("tokens", np.maximum(tokens, 0))
    staging.put("positions", positions)
    staging.put("slots", tables[rows, positions // block_size].astype(np.int64) * block_size + positions % block_size)


def _put_follows(staging: Staging, chunks: tuple[Chunk, ...], lengths: list[int]) -> int:
    followed = [row for row, chunk in enumerate(chunks) if chunk.follows is not None]
    if followed:
        starts = [0, *accumulate(lengths)]
        staging.put("follow_places", [starts[row] for row in followed])
        staging.put("follow_rows", [chunks[row].follows or 0 for row in followed])
    return len(followed)


def _pad(staging: Staging, count: int, padded: int) -> None:
    """Rows that store nothing and see nothing."""
    for name, value in (("tokens", 0), ("positions", 0), ("slots", -1), ("contexts", 0)):
        staging.at[name][count:padded] = value


def _logit_rows(chunks: tuple[Chunk, ...], lengths: list[int]) -> list[int]:
    """The tokens whose logits are drawn from: a sampling chunk's last, and as many before it as it has drafts."""
    rows, end = list[int](), 0
    for chunk, length in zip(chunks, lengths, strict=True):
        end += length
        if chunk.samples:
            rows += range(end - 1 - chunk.drafts, end)
    return rows
