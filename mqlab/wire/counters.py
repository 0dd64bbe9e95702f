"""Counters of one process in a file of shared memory: one process writes, any other reads without asking it.

Words of 64 bits, each written whole, so no lock is needed. Names are given out while the process runs, and a reader sees a name only once
it is whole.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from mqlab.errors import MqlabError

CAPACITY = 512
"""Counters that a page holds."""

_NAME = 56
_HEADER = 8
_WORDS = _HEADER + CAPACITY * _NAME
PAGE_BYTES = _WORDS + CAPACITY * 8
"""Size of a whole page's file."""


class Block:
    """Some counters of a page, written together by the one thread that owns them.

    Attributes:
        write: called with a value for every counter, in the order of the names. Raises struct.error where it is not one whole number a
            counter, and TypeError or ValueError once the page is closed.
    """

    __slots__ = ("write",)

    def __init__(self, memory: mmap.mmap, offset: int, count: int) -> None:
        # No method: at a message a call or two, what Python itself spends on one counts.
        self.write: Callable[..., None] = partial(struct.Struct(f"{count}q").pack_into, memory, offset)


class CounterPage:
    """The counters of one process. ``create`` for the one that writes, ``open`` for those that read."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._all = memoryview(memory)
        self._count = self._all[:_HEADER].cast("q")
        self._words = self._all[_WORDS:].cast("q")
        self._lock = threading.Lock()
        self._blocks: dict[tuple[str, ...], Block] = {}
        self._names: list[str] = []

    @staticmethod
    def create(path: Path) -> CounterPage:
        """A new, empty page in a file; one of that name is replaced, and those who read it keep it as it was."""
        new = path.with_name(path.name + ".new")
        new.write_bytes(bytes(PAGE_BYTES))
        with new.open("r+b") as file:
            page = CounterPage(mmap.mmap(file.fileno(), PAGE_BYTES))
        new.rename(path)
        return page

    @staticmethod
    def open(path: Path) -> CounterPage:
        """The page that another process created, to read.

        Raises:
            OSError, ValueError: there is none, or it is not whole.
        """
        with path.open("rb") as file:
            return CounterPage(mmap.mmap(file.fileno(), PAGE_BYTES, access=mmap.ACCESS_READ))

    def block(self, *names: str) -> Block:
        """The counters of these names, new ones at 0 where there are none. For the writing process, from any thread.

        Raises:
            MqlabError: the page is full, or a name is too long.
        """
        with self._lock:
            if names not in self._blocks:
                self._blocks[names] = self._add(names)
            return self._blocks[names]

    def read(self) -> dict[str, int]:
        """Every counter by name, as of now."""
        count = self._count[0]
        self._names += map(self._name, range(len(self._names), count))
        return dict(zip(self._names, self._words[:count], strict=True))

    def close(self) -> None:
        """Unmap; idempotent. Blocks given out must not be used any more."""
        for view in (self._count, self._words, self._all):
            view.release()
        self._memory.close()

    def _add(self, names: Iterable[str]) -> Block:
        first, encoded = self._count[0], [name.encode() for name in names]
        if first + len(encoded) > CAPACITY or max(map(len, encoded)) > _NAME:
            raise MqlabError(f"no room for counters {names}: {first} of {CAPACITY} are taken, a name has {_NAME} bytes at most")
        for index, name in enumerate(encoded, first):
            start = _HEADER + index * _NAME
            self._all[start : start + len(name)] = name
        self._count[0] = first + len(encoded)  # last: a reader never sees half a name
        return Block(self._memory, _WORDS + 8 * first, len(encoded))

    def _name(self, index: int) -> str:
        start = _HEADER + index * _NAME
        return bytes(self._all[start : start + _NAME]).rstrip(b"\0").decode()
