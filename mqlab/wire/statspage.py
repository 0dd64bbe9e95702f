"""A page of shared memory that an engine writes and others read without asking it.

Words of 64 bits, each written whole, so no lock is needed and a reader learns the engine's state even when its loop, its
GIL or its sockets are stuck. The step stamp is the liveness signal that a sick engine cannot fake: the *other* side judges it.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from mqlab.types import EngineStats

PAGE = "stats"
"""Name of the page's file within its run folder."""


class Phase(IntEnum):
    """What an engine's loop is doing."""

    LOADING = 0
    IDLE = 1
    STEP = 2
    CALL = 3


class _Word(IntEnum):
    PHASE = 0
    SINCE_NS = 1
    STEPS = 2
    RUNNING = 3
    WAITING = 4
    BLOCKS_USED = 5
    BLOCKS_TOTAL = 6
    PROMPT_TOKENS = 7
    GENERATION_TOKENS = 8
    PREEMPTIONS = 9
    PREFIX_QUERIES = 10
    PREFIX_HITS = 11
    DRAFTED = 12
    ACCEPTED = 13
    DEVICE_US = 14
    OVERSLEEP_US = 15


_SIZE = 4096


@dataclass(frozen=True)
class Stamp:
    """A reading of the loop's phase and how long it has lasted."""

    phase: Phase
    age_s: float


class StatsPage:
    """One engine's page. ``StatsPage()`` is private to the process; ``create`` and ``open`` share it through a file."""

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        self._memory = memory if memory is not None else mmap.mmap(-1, _SIZE)
        self._words = memoryview(self._memory).cast("Q")

    @staticmethod
    def create(path: Path) -> StatsPage:
        """A new page in a file, phase loading."""
        path.write_bytes(bytes(_SIZE))
        page = StatsPage.open(path)
        page.enter(Phase.LOADING)
        return page

    @staticmethod
    def open(path: Path) -> StatsPage:
        """The page that another process created."""
        with path.open("r+b") as file:
            return StatsPage(mmap.mmap(file.fileno(), _SIZE))

    def enter(self, phase: Phase) -> None:
        """Stamp the begin of a phase, or that an idle loop still turns."""
        # The stamp goes first: a reader between the two writes sees the old phase as just begun, never a new one as old.
        self._words[_Word.SINCE_NS] = time.monotonic_ns()
        self._words[_Word.PHASE] = phase

    def stamp(self) -> Stamp:
        """The phase and its age, as of now."""
        # Read in the order opposite to enter's writes, or a new phase could be given the old one's age.
        phase = Phase(self._words[_Word.PHASE])
        age_ns = time.monotonic_ns() - self._words[_Word.SINCE_NS]
        return Stamp(phase, max(age_ns, 0) / 1e9)

    def write(self, stats: EngineStats) -> None:
        """Publish counters and gauges."""
        words = self._words
        words[_Word.STEPS] = stats.steps
        words[_Word.RUNNING] = stats.running
        words[_Word.WAITING] = stats.waiting
        words[_Word.BLOCKS_USED] = stats.blocks_used
        words[_Word.BLOCKS_TOTAL] = stats.blocks_total
        words[_Word.PROMPT_TOKENS] = stats.prompt_tokens
        words[_Word.GENERATION_TOKENS] = stats.generation_tokens
        words[_Word.PREEMPTIONS] = stats.preemptions
        words[_Word.PREFIX_QUERIES] = stats.prefix_queries
        words[_Word.PREFIX_HITS] = stats.prefix_hits
        words[_Word.DRAFTED] = stats.drafted
        words[_Word.ACCEPTED] = stats.accepted
        words[_Word.DEVICE_US] = stats.device_us
        words[_Word.OVERSLEEP_US] = stats.oversleep_us

    def read(self) -> EngineStats:
        """The counters and gauges published last."""
        words = self._words
        return EngineStats(
            stamp_ns=time.monotonic_ns(),
            steps=words[_Word.STEPS],
            running=words[_Word.RUNNING],
            waiting=words[_Word.WAITING],
            blocks_used=words[_Word.BLOCKS_USED],
            blocks_total=words[_Word.BLOCKS_TOTAL],
            prompt_tokens=words[_Word.PROMPT_TOKENS],
            generation_tokens=words[_Word.GENERATION_TOKENS],
            preemptions=words[_Word.PREEMPTIONS],
            prefix_queries=words[_Word.PREFIX_QUERIES],
            prefix_hits=words[_Word.PREFIX_HITS],
            drafted=words[_Word.DRAFTED],
            accepted=words[_Word.ACCEPTED],
            device_us=words[_Word.DEVICE_US],
            oversleep_us=words[_Word.OVERSLEEP_US],
        )

    def close(self) -> None:
        """Unmap; idempotent."""
        self._words.release()
        self._memory.close()
