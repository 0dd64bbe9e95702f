"""What a job of the device bench gives: plain rows, that cross from its process to the one that shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["graph", "eager"]
Planning = Literal["plain", "async"]

COPY = "copy"
"""The ceiling of what moves memory."""


def matmul(dtype: str) -> str:
    """The name of a ceiling of arithmetic."""
    return f"matmul {dtype}"


@dataclass(frozen=True)
class Spread:
    """Times of one thing done again and again, in µs.

    Attributes:
        median: of all runs.
        low, high: percentiles 10 and 90.
        runs: how many there were.
    """

    median: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Facts:
    """The device.

    Attributes:
        kind: cuda or cpu.
        memory_gib: of it, free_gib: of that when the bench began.
        capability: such as 90; 0 of a CPU.
        l2_mib: its last cache.
        software: versions by name: cuda, driver, triton.
    """

    kind: str
    name: str
    memory_gib: float
    free_gib: float
    capability: int = 0
    l2_mib: float = 0.0
    software: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ceiling:
    """What the device reaches at its best at one thing.

    Attributes:
        name: ``copy``, ``matmul DTYPE`` or what a launch is.
        value: in ``unit``: GB/s, TFLOP/s (int8: TOP/s) or µs.
        what: how it was measured.
    """

    name: str
    value: float
    unit: str
    time: Spread
    what: str


@dataclass(frozen=True)
class Agreement:
    """A kernel held to its reference on the device.

    Attributes:
        error: the largest difference, as a multiple of what is tolerated; None where it is none, or nothing could be compared.
        note: what is tolerated, or why it failed.
    """

    kernel: str
    case: str
    dtype: str
    error: float | None
    ok: bool
    note: str = ""


@dataclass(frozen=True)
class Timed:
    """A kernel's time for one case.

    Attributes:
        moved: bytes that have to be read and written at least.
        flops: floating-point operations (int8: operations) that it has to do.
        ceiling: the name of the one that its arithmetic is held to.
    """

    kernel: str
    case: str
    dtype: str
    time: Spread
    moved: int
    flops: int
    ceiling: str


@dataclass(frozen=True)
class Swept:
    """A kernel with the configs of its sweep: whether the shipped one is the best on this device.

    Attributes:
        shipped, best: their configs in words.
        failed: configs that did not run, and why.
    """

    kernel: str
    case: str
    shipped: str
    shipped_time: Spread
    best: str
    best_time: Spread
    tried: int
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepTime:
    """A decode step of a model with made-up weights.

    Attributes:
        mode: by a CUDA graph, or kernel by kernel.
        time: from the launch to the tokens on the host, each step alone.
        device_us: of the device for a step that is queued behind another one, between two CUDA events, the median; 0 where nobody knows.
        moved: bytes that it has to read: the weights once, and the keys and values of every sequence.
    """

    model: str
    batch: int
    context: int
    mode: Mode
    time: Spread
    device_us: float
    moved: int


@dataclass(frozen=True)
class Bubble:
    """The engine in a plain loop, with a token to make for every one of its sequences at each step.

    Attributes:
        planning: each step planned when the one before it has landed, or while it runs.
        steps: that were counted.
        period_us: from a step to the next, the mean.
        device_us: that the device needs of it: see ``StepTime``.
    """

    model: str
    batch: int
    planning: Planning
    steps: int
    period_us: float
    device_us: float

    @property
    def idle(self) -> float:
        """Share of its time that the device had nothing to do although there was work."""
        return max(0.0, 1 - self.device_us / self.period_us)


@dataclass(frozen=True)
class EngineRate:
    """An engine of a model with made-up weights, through one layout.

    Attributes:
        tokens_per_s: new ones, by round.
        tpot_ms: median time per output token, of the rounds the median; cpu_us: CPU of all processes a token, likewise.
        same: share of the requests whose tokens were those of the first layout of their group.
    """

    model: str
    layout: str
    tokens_per_s: tuple[float, ...]
    tpot_ms: float
    cpu_us: float
    same: float


@dataclass(frozen=True)
class Skip:
    """What was not measured, and why."""

    part: str
    name: str
    why: str


Row = Facts | Ceiling | Agreement | Timed | Swept | StepTime | Bubble | EngineRate | Skip
