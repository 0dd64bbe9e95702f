"""Ranks of a group as threads of the test: gloo does not mind, and a failure of one is the test's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch.distributed import HashStore

from mqlab.model.making import Alone, Group
from mqlab.model.parallel.group import TorchGroup

T = TypeVar("T")


def ranked(size: int, run: Callable[[Group], T]) -> list[T]:
    """What ``run`` gives on each rank, called on all at once."""
    if size == 1:
        return [run(Alone())]
    store = HashStore()

    def one(rank: int) -> T:
        group = TorchGroup(store, rank, size)
        try:
            return run(group)
        finally:
            group.close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))
