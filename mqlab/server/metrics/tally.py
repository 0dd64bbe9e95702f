"""Where a front keeps its counts: words of float64 with a fixed layout, in memory, or in a file that its siblings can read.

Each front writes its own file, and only that; whoever makes the page adds up all of them, those of fronts that are dead or stuck too.
A front that is started anew goes on with the file of the one before it, so a counter never goes back. What goes wrong with a file is
logged and costs at most the sums over several fronts: counting never fails.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import struct
from array import array
from collections.abc import MutableSequence, Sequence
from pathlib import Path

_LOG = logging.getLogger(__name__)

_HEAD = struct.Struct("<Qq")
"""The layout's digest, and the pid of who writes."""

_WORD = 8

Words = MutableSequence[float]


class Tally:
    """The words of one front, which has no siblings.

    Args:
        size: how many words.

    Attributes:
        words: this front's own; to be counted in.
    """

    def __init__(self, size: int) -> None:
        self.words: Words = [0.0] * size

    def sums(self) -> Sequence[float]:
        """Each word, over all fronts."""
        return self.words

    def pids(self) -> dict[int, int]:
        """Process ids of the fronts by their index."""
        return {0: os.getpid()}


class SharedTally(Tally):
    """The words of one of several fronts. What was counted stays in its file, for siblings and successors.

    Args:
        size: how many words.
        digest: 64 bits that tell this layout from others.
        folder: private to these fronts, common to all of them.
        index: of this front.
    """

    def __init__(self, size: int, digest: int, folder: Path, index: int) -> None:
        super().__init__(size)
        self._size = size
        self._digest = digest
        self._folder = folder
        self._index = index
        self._read: dict[int, tuple[int, Sequence[float]]] = {}
        try:
            self.words = self._open()
        except (OSError, ValueError) as error:
            _LOG.warning("front %d keeps its counts to itself, other fronts' pages lack them: %s", index, error)

    def sums(self) -> Sequence[float]:
        """See Tally.sums. Of a file that cannot be read any more its last known words count."""
        self._look()
        siblings = [words for index, (_, words) in self._read.items() if index != self._index]
        return list(map(sum, zip(self.words, *siblings, strict=True)))

    def pids(self) -> dict[int, int]:
        """See Tally.pids; of those that have begun to count."""
        self._look()
        return {**{index: pid for index, (pid, _) in sorted(self._read.items())}, self._index: os.getpid()}

    def _open(self) -> Words:
        path = self._path(self._index)
        if self._parsed(path) is None:
            _write_whole(path, _HEAD.pack(self._digest, os.getpid()) + bytes(self._size * _WORD))
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), _HEAD.size + self._size * _WORD)
        _HEAD.pack_into(memory, 0, self._digest, os.getpid())
        return memoryview(memory)[_HEAD.size :].cast("d")  # pyright: ignore[reportReturnType]

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            for path in self._folder.glob("front-*.tally"):
                index = path.stem.removeprefix("front-")
                if index.isdigit() and (found := self._parsed(path)) is not None:
                    self._read[int(index)] = found

    def _parsed(self, path: Path) -> tuple[int, Sequence[float]] | None:
        """A file's pid and words; None where there is none of this layout. Read, not mapped: a file cut short must not kill its reader."""
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if len(data) != _HEAD.size + self._size * _WORD:
            return None
        digest, pid = _HEAD.unpack_from(data)
        return (pid, array("d", data[_HEAD.size :])) if digest == self._digest else None

    def _path(self, index: int) -> Path:
        return self._folder / f"front-{index}.tally"


def _write_whole(path: Path, data: bytes) -> None:
    """A file that nobody sees half."""
    half = path.with_suffix(f".{os.getpid()}")
    try:
        half.write_bytes(data)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
