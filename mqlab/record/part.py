"""What was sampled of one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from mqlab.record.flame import Stack, Stacks


@dataclass(frozen=True)
class Part:
    """One process of a capture.

    Attributes:
        role: its name in pictures and tables.
        stacks: samples by stack; the outermost frame is the thread's name.
        ticks: moments at which the process was looked at; a thread that always ran has as many samples.
        pid: of the process; 0 where a loaded file does not say.
        seconds: how long it was sampled; 0 where a loaded file does not say.
        cpu_s: CPU seconds in that time as the operating system counted them, by thread name; empty where nobody knows.
        queued_s: seconds that its threads were ready to run while no core was free; 0 where nobody knows.
        errors: samples that failed.
        python: version of its interpreter, like "3.12"; empty where unknown.
        notes: sentences on what is missing or doubtful.
    """

    role: str
    stacks: Stacks
    ticks: int
    pid: int = 0
    seconds: float = 0.0
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    queued_s: float = 0.0
    errors: int = 0
    python: str = ""
    notes: tuple[str, ...] = ()

    @property
    def cpus(self) -> float | None:
        """CPUs used, as the operating system counted: 1.0 is one core all the time; None where nobody knows."""
        return sum(self.cpu_s.values()) / self.seconds if self.cpu_s and self.seconds else None

    def threads(self) -> dict[str, Stacks]:
        """Its stacks by thread, without the thread's own frame; a stack of nothing else is kept whole."""
        by_thread: defaultdict[str, dict[Stack, int]] = defaultdict(dict)
        for stack, count in self.stacks.counts.items():
            by_thread[stack[0]][stack[1:] or stack] = count
        return {name: Stacks(counts) for name, counts in by_thread.items()}
