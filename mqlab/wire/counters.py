"""Counters of one process in a file of shared memory: one process writes, any other reads without asking it.

Words of 64 bits, each written whole, so no lock is needed. A counter has one writer thread. Names are given out while the process
runs, and a reader sees a name only once it is whole.
"""

from __future__ import annotations

import mmap
import threading
from pathlib import Path

from mqlab.errors import MqlabError

CAPACITY = 512
"""Counters that a page holds."""

_NAME = 56
_HEADER = 8
_WORDS = _HEADER + CAPACITY * _NAME
_SIZE = _WORDS + CAPACITY * 8


class Counter:
    """One word of a page: signed, 64 bits. Only its one writer thread may change it."""

    __slots__ = ("_index", "_words")

    def __init__(self, words: memoryview, index: int) -> None:
        self._words = words
        self._index = index

    def add(self, amount: int) -> None:
        """Let it grow."""
        self._words[self._index] += amount

    def set(self, value: int) -> None:
        """Give a gauge its value."""
        self._words[self._index] = value

    def value(self) -> int:
        """What it holds."""
        return self._words[self._index]


class CounterPage:
    """The counters of one process. ``create`` for the one that writes, ``open`` for those that read."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._all = memoryview(memory)
        self._count = self._all[:_HEADER].cast("q")
        self._words = self._all[_WORDS:].cast("q")
        self._lock = threading.Lock()
        self._counters: dict[str, Counter] = {}

    @staticmethod
    def create(path: Path) -> CounterPage:
        """A new, empty page in a file."""
        path.write_bytes(bytes(_SIZE))
        return CounterPage.open(path)

    @staticmethod
    def open(path: Path) -> CounterPage:
        """The page that another process created.

        Raises:
            OSError, ValueError: there is none, or it is not whole.
        """
        with path.open("r+b") as file:
            return CounterPage(mmap.mmap(file.fileno(), _SIZE))

    def counter(self, name: str) -> Counter:
        """The counter of that name, a new one at 0 where there is none. For the writing process, from any thread.

        Raises:
            MqlabError: the page is full, or the name is too long.
        """
        with self._lock:
            if name not in self._counters:
                self._counters[name] = self._add(name)
            return self._counters[name]

    def read(self) -> dict[str, int]:
        """Every counter by name, as of now."""
        return {self._name(index): self._words[index] for index in range(self._count[0])}

    def close(self) -> None:
        """Unmap; idempotent. Counters given out must not be used any more."""
        for view in (self._count, self._words, self._all):
            view.release()
        self._memory.close()

    def _add(self, name: str) -> Counter:
        index, encoded = self._count[0], name.encode()
        if index >= CAPACITY or len(encoded) > _NAME:
            raise MqlabError(f"no room for counter {name!r}: {index} of {CAPACITY} are taken, a name has {_NAME} bytes at most")
        start = _HEADER + index * _NAME
        self._all[start : start + len(encoded)] = encoded
        self._count[0] = index + 1  # last: a reader never sees half a name
        return Counter(self._words, index)

    def _name(self, index: int) -> str:
        start = _HEADER + index * _NAME
        return bytes(self._all[start : start + _NAME]).rstrip(b"\0").decode()
