"""A step's numbers on the device, against the CPU's layout of the same plan."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import GREEDY

from mqlab.model.accel.accelerator import HostAccelerator
from mqlab.model.accel.buffers import Batch, Limits, StepBuffers
from mqlab.model.accel.tables import Tables
from mqlab.model.batch import BatchTensors
from mqlab.plan import UNKNOWN, Chunk, Plan

BLOCK = 4
LIMITS = Limits(tokens=64, rows=6, blocks=8, block_size=BLOCK)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    chunks = []
    for row in range(draw(st.integers(1, LIMITS.rows))):
        start, length = draw(st.integers(0, 20)), draw(st.integers(1, 10))
        samples = draw(st.booleans())
        drafts = draw(st.integers(0, length - 1)) if samples else 0
        blocks = tuple(draw(st.lists(st.integers(0, 99), min_size=8, max_size=8)))[: -(-(start + length) // BLOCK)]
        tokens = tuple(draw(st.lists(st.integers(-1, 96), min_size=length, max_size=length)))
        chunks.append(Chunk(f"r{row}", tokens, start, blocks, samples, GREEDY, 0, drafts=drafts))
    return Plan(tuple(chunks))


def flat(batch: Batch) -> dict[str, list[int]]:
    """What the parts of a batch say together."""
    parts = [part for part in (batch.decodes, batch.prefills) if part is not None]
    starts = list(range(batch.singles + 1))
    if batch.prefills is not None:
        starts += [batch.singles + start for start in batch.prefills.starts.tolist()[1:]]
        assert list(batch.prefills.ends) == batch.prefills.contexts.tolist()
        assert list(batch.prefills.lengths) == batch.prefills.starts.diff().tolist()
    return {
        "tokens": batch.tokens.tolist(),
        "positions": batch.positions.tolist(),
        "slots": batch.slots.tolist(),
        "contexts": torch.cat([part.contexts for part in parts]).tolist(),
        "query_starts": starts,
        "logit_rows": list(range(len(batch.tokens))) if batch.logit_rows is None else batch.logit_rows.tolist(),
    }


@settings(max_examples=60, deadline=None)
@given(st.lists(plans(), min_size=1, max_size=4))
def test_a_batch_says_what_the_cpu_s_does(some: list[Plan]) -> None:
    """Whatever the buffers held before."""
    buffers = StepBuffers(HostAccelerator(), LIMITS)
    for plan in some:
        batch, wanted = buffers.load(plan), BatchTensors.of(plan, BLOCK)
        for name, values in flat(batch).items():
            assert values == getattr(wanted, name).tolist(), name
        assert batch.draws == len(wanted.logit_rows)
        for row, chunk in enumerate(plan.chunks):
            assert buffers.tables[row, : len(chunk.blocks)].tolist() == list(chunk.blocks)


def growing(blocks: tuple[int, ...]) -> Plan:
    return Plan((Chunk("r", (1,), len(blocks) * BLOCK - 1, blocks, True, GREEDY, 0),))


def test_of_block_tables_a_step_brings_what_changed() -> None:
    tables = Tables(HostAccelerator(), 6, 8)
    row = growing((7, 8)).chunks
    assert tables.put(row * 2).tolist() == [0, 1, 8, 9]
    assert tables.put(row * 2).tolist() == []
    longer, shorter, other = growing((7, 8, 9)).chunks, growing((7,)).chunks, growing((5, 8, 9)).chunks
    assert tables.put((*row, *longer)).tolist() == [10]
    assert tables.put((*shorter, *other)).tolist() == [8]
    assert tables.put((*other, *shorter)).tolist() == [0, 2, 8]
    assert tables.host[:2, :3].tolist() == [[5, 8, 9], [7, 8, 9]], "what lies behind a row's blocks is nobody's"


def test_block_tables_that_change_whole_come_whole() -> None:
    buffers = StepBuffers(HostAccelerator(), LIMITS)
    for first in (0, 50):
        chunks = tuple([chunk for row in range(6) for chunk in growing(tuple(range(first + row, first + row + 8))).chunks])
        buffers.load(Plan(chunks), 6)
        assert LIMITS.entries < 6 * 8
        assert buffers.tables.tolist() == [list(chunk.blocks) for chunk in chunks]
        buffers.load(growing((1, 2)), 1)
        assert buffers.tables[0].tolist() == [1, 2, *chunks[0].blocks[2:]]


@settings(max_examples=30, deadline=None)
@given(plans(), st.integers(1, 6))
def test_a_graph_s_other_rows_are_padding(before: Plan, count: int) -> None:
    buffers = StepBuffers(HostAccelerator(), LIMITS)
    buffers.load(before)
    plan = Plan(tuple(Chunk(f"r{row}", (row,), 5, (1, 2), True, GREEDY, 0) for row in range(count)))
    batch = buffers.load(plan, 6)
    assert batch.decodes is not None and batch.prefills is None and batch.logit_rows is None
    assert batch.slots.tolist() == [2 * BLOCK + 1] * count + [-1] * (6 - count)
    assert batch.decodes.contexts.tolist() == [6] * count + [0] * (6 - count)
    assert batch.positions.tolist() == [5] * count + [0] * (6 - count)


def test_tokens_that_are_still_on_the_device_are_filled_in_there() -> None:
    buffers = StepBuffers(HostAccelerator(), LIMITS)
    buffers.last[:3] = torch.tensor([11, -1, 33])
    known, prompt = Chunk("a", (7,), 3, (5,), True, GREEDY, 0), Chunk("d", (1, 2, 3), 0, (9,), True, GREEDY, 0)
    after = [Chunk(f"r{row}", (UNKNOWN,), 2, (6,), True, GREEDY, 0, follows=row) for row in (2, 0, 1)]
    batch = buffers.load(Plan((after[0], known, *after[1:], prompt)))
    assert batch.tokens.tolist() == [33, 7, 11, 0, 1, 2, 3]
