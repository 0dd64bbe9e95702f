"""The KV cache's blocks: how many hold each, which are free, and which free one is used next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // block_size)


class BlockPool:
    """Hands out block ids, and knows the contents of some by name.

    A block is held once for each table that it stands in, and free when none holds it. A block may have a name, which stands for its
    contents: it can be found by it, and keeps both while it is free, until it is needed for something else. Those without a name go
    first, then the one that was free for longest.

    Args:
        num_blocks: blocks in the pool, ids 0 to num_blocks - 1.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._name_of: dict[int, bytes] = {}
        # Taken and returned at the end, so that a freed block, still warm in the caches, is the next one used.
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._named: OrderedDict[int, None] = OrderedDict()  # free ones with a name, in the order in which they were freed

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._blank) + len(self._named)

    @property
    def num_used(self) -> int:
        """Blocks held by at least one table."""
        return self.num_blocks - self.num_free

    def take(self, count: int) -> tuple[int, ...] | None:
        """So many blocks, held once and without a name; None, and nothing changed, when fewer are free."""
        if count > self.num_free:
            return None
        blocks = tuple([self._blank.pop() if self._blank else self._evict() for _ in range(count)])
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Hold each of these, free or held, once more."""
        for block in blocks:
            if not self._holders[block]:
                del self._named[block]
            self._holders[block] += 1

    def give_back(self, blocks: Sequence[int]) -> None:
        """Hold each of these once less. Of those then free the last is the first to go: a beginning is of more use than what follows it."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._name_of:
                self._named[block] = None
            else:
                self._blank.append(block)

    def name(self, block: int, name: bytes) -> None:
        """Name a held block, unless another has that name already."""
        if name not in self._block_of:
            self._block_of[name] = block
            self._name_of[block] = name

    def find(self, name: bytes) -> int | None:
        """The block of that name."""
        return self._block_of.get(name)

    def free_among(self, blocks: Sequence[int]) -> int:
        """How many of these nobody holds."""
        return sum([not self._holders[block] for block in blocks])

    def forget_names(self) -> None:
        """No block has a name any more. Who holds which stays."""
        self._block_of.clear()
        self._name_of.clear()
        self._blank.extend(reversed(self._named))
        self._named.clear()

    def _evict(self) -> int:
        block, _ = self._named.popitem(last=False)
        del self._block_of[self._name_of.pop(block)]
        return block
