"""A plan as tensors."""

from __future__ import annotations

from plans import GREEDY

from mqlab.model.batch import BatchTensors
from mqlab.plan import Chunk, Plan


def test_a_mixed_plan_is_laid_out_token_by_token() -> None:
    decode = Chunk("a", (7,), 9, (5, 2, 8), True, GREEDY, seed=0)
    part = Chunk("b", (1, 2, 3), 2, (1, 0), False, GREEDY, seed=0)
    whole = Chunk("c", (4, 6), 0, (3,), True, GREEDY, seed=0)
    batch = BatchTensors.of(Plan((decode, part, whole)), block_size=4)
    assert batch.tokens.tolist() == [7, 1, 2, 3, 4, 6]
    assert batch.positions.tolist() == [9, 2, 3, 4, 0, 1]
    assert batch.slots.tolist() == [8 * 4 + 1, 1 * 4 + 2, 1 * 4 + 3, 0, 12, 13]
    assert batch.chunk_rows.tolist() == [0, 1, 1, 1, 2, 2]
    assert batch.query_starts.tolist() == [0, 1, 4, 6]
    assert batch.contexts.tolist() == [10, 5, 2]
    assert batch.tables.tolist() == [[5, 2, 8], [1, 0, 0], [3, 0, 0]]
    assert batch.logit_rows.tolist() == [0, 5]
