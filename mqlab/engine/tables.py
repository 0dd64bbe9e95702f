"""Which KV blocks each sequence holds. Nothing else changes a block table."""

from __future__ import annotations

import sys

from mqlab.engine.blocks import BlockPool, blocks_for
from mqlab.engine.prefix import PrefixCache
from mqlab.engine.sequence import Sequence


class BlockTables:
    """Gives sequences the blocks that their tokens need, shared with others where those hold the same beginning.

    A sequence writes only behind what it found in the prefix cache, so never into a block that it did not take for itself; and a block
    gets its name only when the step that fills it is planned, or later. Plans run in order, and within one step all keys are
    written before any is read (``plan.Runner``): whoever finds a block reads what its name says. All the more must no planned step be
    dropped, and nobody is preempted in flight.

    Args:
        num_blocks: blocks in the pool.
        block_size: tokens a block.
        prefix_caching: whether blocks are ever shared.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self._cache = PrefixCache(self.pool, block_size) if prefix_caching else None

    def open(self, sequence: Sequence) -> bool:
        """Give a sequence without blocks those that all its tokens need; False, and nothing changed, when there are too few.

        What the prefix cache holds of it counts as computed.
        """
        found = () if self._cache is None else self._cache.find(sequence)
        if self._lacking(sequence, found) > 0:
            return False
        self.pool.share(found)
        sequence.blocks = found
        sequence.computed = sequence.capacity = len(found) * self.block_size
        sequence.named = len(found)
        sequence.name_at = sys.maxsize if self._cache is None else sequence.computed + self.block_size
        if self._cache is not None and not sequence.admitted and not sequence.whole:
            self._cache.queries += sequence.num_prompt
            self._cache.hits += sequence.computed
        if not sequence.admitted:
            sequence.cached = sequence.computed
        sequence.admitted = True
        return self.grow(sequence)

    def lacking(self, sequence: Sequence) -> int:
        """Blocks that a sequence without any lacks; at most 0 when it can be opened."""
        return self._lacking(sequence, () if self._cache is None else self._cache.find(sequence))

    def _lacking(self, sequence: Sequence, found: tuple[int, ...]) -> int:
        needed = blocks_for(sequence.length, self.block_size) - len(found)
        return needed + self.pool.free_among(found) - self.pool.num_free

    def grow(self, sequence: Sequence, ahead: int = 0) -> bool:
        """Give a sequence the blocks that all its tokens need, and ``ahead`` more; False, and nothing changed, when there are too few."""
        missing = blocks_for(sequence.length + ahead, self.block_size) - len(sequence.blocks)
        if missing <= 0:
            return True
        taken = self.pool.take(missing)
        if taken is None:
            return False
        sequence.blocks += taken
        sequence.capacity = len(sequence.blocks) * self.block_size
        return True

    def note(self, sequence: Sequence, written: int) -> None:
        """The first ``written`` tokens of a sequence are in the cache or planned; those of them that are known can be found by others."""
        known = min(written, len(sequence.tokens))
        # ``name_at`` spares all but one call in ``block_size`` the rest.
        if known >= sequence.name_at and self._cache is not None:
            self._cache.note(sequence, known)

    def close(self, sequence: Sequence) -> None:
        """Take back all blocks of a sequence, with nothing of it in flight."""
        if sequence.blocks:
            self.note(sequence, sequence.computed)
            self.pool.give_back(sequence.blocks)
        sequence.blocks = ()
        sequence.computed = sequence.capacity = sequence.named = 0

    def forget(self) -> None:
        """Empty the prefix cache. Blocks in use stay with their sequences, and are found by nobody else any more."""
        self.pool.forget_names()

    def gauges(self) -> dict[str, int]:
        """The fields of EngineStats about blocks."""
        return {
            "blocks_used": self.pool.num_used,
            "blocks_total": self.pool.num_blocks,
            "prefix_queries": 0 if self._cache is None else self._cache.queries,
            "prefix_hits": 0 if self._cache is None else self._cache.hits,
        }
