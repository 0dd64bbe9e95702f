"""The pool of KV blocks, against a model of it: what is held, what is free, what is found."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from mqlab.engine.blocks import BlockPool

BLOCKS = 6


class Pool(RuleBasedStateMachine):
    """Tables are tuples of blocks, as sequences hold them."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS)
        self.held: Counter[int] = Counter()
        self.names: dict[bytes, int] = {}

    @rule(target=tables, count=st.integers(0, BLOCKS + 1))
    def take(self, count: int) -> object:
        free = self.pool.num_free
        taken = self.pool.take(count)
        assert (taken is None) == (count > free)
        if taken is None:
            return multiple()
        assert len(set(taken)) == len(taken) == count
        assert not any(self.held[block] for block in taken), "handed out while somebody holds it"
        self.names = {name: block for name, block in self.names.items() if block not in taken}
        self.held.update(taken)
        return taken

    @rule(target=tables, table=tables)
    def share(self, table: tuple[int, ...]) -> tuple[int, ...]:
        self.pool.share(table)
        self.held.update(table)
        return table

    @rule(table=consumes(tables))
    def give_back(self, table: tuple[int, ...]) -> None:
        self.pool.give_back(table)
        self.held.subtract(table)

    @rule(table=tables, name=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def name(self, table: tuple[int, ...], name: bytes) -> None:
        if table and table[-1] not in self.names.values():
            self.pool.name(table[-1], name)
            self.names.setdefault(name, table[-1])

    @rule(target=tables, name=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def find_and_share(self, name: bytes) -> object:
        block = self.pool.find(name)
        assert block == self.names.get(name)
        if block is None:
            return multiple()
        assert self.pool.free_among((block,)) == (not self.held[block])
        return self.share((block,))

    @rule()
    def forget_names(self) -> None:
        self.pool.forget_names()
        self.names.clear()

    @invariant()
    def none_is_lost(self) -> None:
        assert self.pool.num_used == sum(count > 0 for count in self.held.values())
        assert self.pool.num_used + self.pool.num_free == BLOCKS


TestPool = Pool.TestCase
TestPool.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)


def test_what_has_no_name_goes_first_then_what_was_free_for_longest_its_end_first() -> None:
    pool = BlockPool(5)
    older, newer, blank = pool.take(2), pool.take(2), pool.take(1)
    assert older is not None and newer is not None and blank is not None
    for block in (*older, *newer):
        pool.name(block, b"%d" % block)
    for table in (older, newer, blank):
        pool.give_back(table)
    assert [pool.take(1) for _ in range(5)] == [(block,) for block in (*blank, *reversed(older), *reversed(newer))]


def test_a_block_that_was_used_again_is_free_anew() -> None:
    pool = BlockPool(2)
    for name in (b"a", b"b"):
        table = pool.take(1)
        assert table is not None
        pool.name(table[0], name)
        pool.share(table)
        pool.give_back(table)
        pool.give_back(table)
    first = pool.find(b"a")
    assert first is not None
    pool.share((first,))
    pool.give_back((first,))
    assert pool.take(1) is not None
    assert (pool.find(b"a"), pool.find(b"b")) == (first, None)
