"""A loop that stands still now and then (C37): each stall is told with its start and its size, and looking costs next to nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop

from mqlab.contract.waiting import until
from mqlab.probes.loop import INTERVAL_S, LoopProbe, loop_probe
from mqlab.probes.recording import Recording
from mqlab.probes.sink import Sink
from mqlab.record.events import read_events
from mqlab.record.trace import Trace

PROBE_NS = round(INTERVAL_S * 1e9)


def waits(seconds: float) -> None:
    """Block without computing."""
    threading.Event().wait(seconds)


def spins(seconds: float) -> None:
    """Block and compute."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@dataclass(frozen=True)
class Stall:
    """When the loop stood still, in ns."""

    begin: int
    end: int


Block = tuple[Callable[[float], None], float]


async def stalled(folder: Path, blocks: Sequence[Block]) -> list[Stall]:
    """Stall a loop, with some ticks before, between and after; then let it do much that is small, and nothing."""
    sink, ticks, stalls = Sink(folder, "front"), [0], list[Stall]()
    probe: LoopProbe = loop_probe(sink, lambda: ticks.append(time.monotonic_ns()))
    probe.start()
    for block, seconds in blocks:
        await more(ticks, 2)
        begin = time.monotonic_ns()
        block(seconds)
        stalls.append(Stall(begin, time.monotonic_ns()))
    await more(ticks, 2)
    await asyncio.gather(*(tiny() for _ in range(10_000)))
    await more(ticks, 2)
    probe.stop()
    sink.close()
    return stalls


async def more(ticks: list[int], count: int) -> None:
    enough = len(ticks) + count
    await until(lambda: len(ticks) >= enough)


async def tiny() -> None:
    """A task that does nothing."""


def check(folder: Path, stalls: Sequence[Stall]) -> None:
    (path,) = folder.glob("front-*.loop.events")
    rows = read_events(path).rows
    for stall in stalls:
        row = rows[rows[:, 0] >= stall.end][0]
        lag, due = int(row[1]), int(row[0] - row[1])
        assert lag >= stall.end - stall.begin - PROBE_NS, "its size, but for one probe"
        assert due <= stall.begin + PROBE_NS, "its start, but for one probe"
    worst = max(stall.end - stall.begin for stall in stalls)
    trace = Trace.of(folder)
    (loop,) = trace.loops().to_dict("records")
    assert loop["lag_max_ms"] >= (worst - PROBE_NS) / 1e6 and f"max {loop['lag_max_ms']:.2f} ms" in repr(trace)
    recording = Recording(folder)
    (page,) = recording.read().values()
    recording.close()
    assert page["loop.lag_max_ns"] == rows[:, 1].max()
    assert page["probe.loop.ns"] < 0.02 * page["loop.wall_ns"], "what the probe costs"


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_stalls_are_told_with_start_and_size(tmp_path: Path, factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        stalls = runner.run(stalled(tmp_path, [(waits, 0.05), (waits, 0.3), (spins, 0.2)]))
    check(tmp_path, stalls)


@pytest.mark.full
def test_long_stalls_too(tmp_path: Path) -> None:
    check(tmp_path, asyncio.run(stalled(tmp_path, [(waits, 1.5), (spins, 2.0)])))
