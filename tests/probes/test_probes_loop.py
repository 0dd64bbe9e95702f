"""The loop probe: it sees a loop that is blocked, and goes with what it looks at."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from pathlib import Path

import pytest
import uvloop

from mqlab.contract.waiting import until
from mqlab.probes.loop import LoopProbe, loop_probe
from mqlab.probes.recording import Recording
from mqlab.probes.sink import Sink
from mqlab.record.events import EventLog, read_events


def counters(folder: Path) -> dict[str, int]:
    recording = Recording(folder)
    (page,) = recording.read().values()
    recording.close()
    return page


def block(seconds: float) -> None:
    """Keep this thread busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def blocked(folder: Path) -> None:
    sink = Sink(folder, "front")
    ticks: list[int] = []
    probe = loop_probe(sink, lambda: ticks.append(1))
    probe.start()
    await until(lambda: len(ticks) >= 2)
    block(0.3)
    before = len(ticks)
    await until(lambda: len(ticks) > before)
    probe.stop()
    sink.close()


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_blocked_loop_is_seen(tmp_path: Path, factory: object) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:  # type: ignore[arg-type]
        runner.run(blocked(tmp_path))
    (path,) = tmp_path.glob("front-*.loop.events")
    rows, page = read_events(path).rows, counters(tmp_path)
    assert page["loop.lag_max_ns"] == rows[:, 1].max() >= 200_000_000, "0.3 s, of which the next tick may have been up to 0.05 s away"
    assert page["loop.ticks"] == len(rows)
    assert [page["loop.lag_ns"], page["loop.wall_ns"], page["loop.busy_ns"]] == rows[:, 1:4].sum(0).tolist()
    assert page["loop.busy_ns"] > 10_000_000, "a busy loop uses the CPU"
    assert page["loop.busy_ns"] <= page["loop.wall_ns"] + 10_000_000
    assert (rows[1:, 0] - rows[:-1, 0] == rows[1:, 2]).all(), "intervals lie end to end"
    assert (rows[:, 4:] >= 0).all()


async def test_it_keeps_neither_itself_nor_the_loop(tmp_path: Path) -> None:
    """Dropped without a stop, it ticks no more: its client was dropped, too."""
    gc.disable()
    try:
        ticks: list[int] = []
        sink = Sink(tmp_path, "front")
        probe = loop_probe(sink, lambda: ticks.append(1))
        probe.start()
        await until(lambda: ticks)
        dead, dead_sink = weakref.ref(probe), weakref.ref(sink)
        del probe, sink
        assert dead() is None and dead_sink() is None
    finally:
        gc.enable()


async def test_stop_stops(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "front")
    ticks: list[int] = []
    probe = loop_probe(sink, lambda: ticks.append(1))
    probe.start()
    await until(lambda: ticks)
    probe.stop()
    probe.stop()
    count = len(ticks)
    other = asyncio.Event()
    asyncio.get_running_loop().call_later(0.12, other.set)
    await other.wait()
    assert len(ticks) == count
    sink.close()


async def test_a_tick_that_fails_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(*args: int) -> None:
        raise OSError(28, "No space left on device")

    sink = Sink(tmp_path, "front")
    probe: LoopProbe = loop_probe(sink, lambda: None)
    monkeypatch.setattr(EventLog, "append", full)
    probe.start()
    await until(lambda: caplog.records)
    assert [record.message for record in caplog.records] == ["the probe loop is dropped: OSError: [Errno 28] No space left on device"]
    sink.close()
