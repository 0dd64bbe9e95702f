"""What the front processes of one server know of each other: a page of shared memory with a few words for each.

Words of 64 bits, each written whole and by one process only, so no lock is needed. What a front has written stays when it dies, until
whoever launched it clears its words.
"""

from __future__ import annotations

import mmap
import time
from enum import IntEnum
from pathlib import Path

PAGE = "siblings"
"""Name of the page's file within the run folder."""

_ABSENT = 2**62
"""Connections of a front that takes none: more than any other has."""


_SLACK = 1
"""Connections that a front may have more than another before it lets that one go first; with many of them, an eighth."""


class _Word(IntEnum):
    REQUESTS = 0
    CONNECTIONS = 1
    BEAT_NS = 2


_WIDTH = 8 * len(_Word)


class Siblings:
    """The page as one front sees it. ``Siblings()`` is that of a front without any; ``create`` and ``open`` share one through a file."""

    def __init__(self, memory: mmap.mmap | None = None, index: int = 0) -> None:
        self._memory = memory if memory is not None else mmap.mmap(-1, _WIDTH)
        self._words = memoryview(self._memory).cast("q")
        self._own = index * len(_Word)

    @staticmethod
    def create(path: Path, count: int) -> Siblings:
        """A new page for so many fronts, none of which is there yet; for whoever launches them."""
        path.write_bytes(bytes(count * _WIDTH))
        page = Siblings.open(path)
        for index in range(count):
            page.clear(index)
        return page

    @staticmethod
    def open(path: Path, index: int = 0) -> Siblings:
        """The page that somebody created, for the front of this index."""
        with path.open("r+b") as file:
            return Siblings(mmap.mmap(file.fileno(), 0), index)

    def clear(self, index: int) -> None:
        """A front is gone, or not there yet: it has no requests open, and takes no connections."""
        first = index * len(_Word)
        self._words[first + _Word.REQUESTS] = 0
        self._words[first + _Word.CONNECTIONS] = _ABSENT
        self._words[first + _Word.BEAT_NS] = 0

    def note_requests(self, count: int) -> None:
        """So many requests are open at this front."""
        self._words[self._own + _Word.REQUESTS] = count

    def beat(self) -> None:
        """This front's loop turns."""
        self._words[self._own + _Word.BEAT_NS] = time.monotonic_ns()

    def silent_s(self, index: int) -> float:
        """Seconds since a front's loop has said that it turns; 0 of one that never did."""
        last = self._words[index * len(_Word) + _Word.BEAT_NS]
        return (time.monotonic_ns() - last) / 1e9 if last else 0.0

    def other_requests(self) -> int:
        """Requests that are open at the other fronts."""
        every = self._words[_Word.REQUESTS :: len(_Word)]
        return sum(every) - self._words[self._own + _Word.REQUESTS]

    def ahead(self, connections: int) -> bool:
        """So many connections are open at this front; whether that is clearly more than another one has that takes some, too."""
        self._words[self._own + _Word.CONNECTIONS] = connections
        fewest = min(self._words[_Word.CONNECTIONS :: len(_Word)])
        return connections > fewest + max(_SLACK, fewest // 8)

    def close(self) -> None:
        """Unmap; idempotent."""
        self._words.release()
        self._memory.close()
