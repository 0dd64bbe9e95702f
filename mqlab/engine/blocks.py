"""The KV cache's blocks: who holds which."""

from __future__ import annotations

from mqlab.engine.sequence import Sequence


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // block_size)


class BlockPool:
    """Hands blocks to sequences and takes them back. Nothing else changes a sequence's block table.

    Args:
        num_blocks: blocks in the pool, ids 0 to num_blocks - 1.
        block_size: tokens a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Taken and returned at the end, so that a freed block, still warm in the caches, is the next one used.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_used(self) -> int:
        """Blocks held by sequences."""
        return self.num_blocks - len(self._free)

    def grow(self, sequence: Sequence, ahead: int = 0) -> bool:
        """Give a sequence the blocks that all its tokens need, and ``ahead`` more; False, and nothing changed, when there are too few."""
        missing = blocks_for(sequence.length + ahead, self.block_size) - len(sequence.blocks)
        if missing > len(self._free):
            return False
        if missing > 0:
            sequence.blocks += tuple(self._free.pop() for _ in range(missing))
        return True

    def release(self, sequence: Sequence) -> None:
        """Take back all blocks of a sequence, whose KV is thereby gone."""
        self._free.extend(reversed(sequence.blocks))
        sequence.blocks = ()
        sequence.computed = 0
