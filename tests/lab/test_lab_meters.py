"""From readings to rates and gauges, exactly; and the hour of readings that they come from."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.contract.waiting import until_sync
from mqlab.errors import EngineDeadError
from mqlab.lab.figures import data, duration, number, percent
from mqlab.lab.meters import Flow, Mean, ProcessMeter, Traffic, measure
from mqlab.lab.readings import History, Reading
from mqlab.lab.sampler import Sampler
from mqlab.lab.sparkline import sparkline
from mqlab.probes.sink import Sink
from mqlab.topologies.mq import MqClient
from mqlab.types import Edge, EngineStats, Shape

PIPE = Shape("pipe", (("front", ()), ("engine", ())), (Edge("front", "engine", "PUSH→PULL", "requests", "input"),))
SECOND = 10**9


def reading(at_s: float, counters: Mapping[str, Mapping[str, int]] | None = None, **stats: Any) -> Reading:
    return Reading(EngineStats(stamp_ns=round(at_s * SECOND), **stats), counters or {})


def socket(edge: str, direction: str, messages: int, size: int = 0, eagain: int = 0) -> dict[str, int]:
    name = f"socket.{edge}.{direction}"
    return {f"{name}.messages": messages, f"{name}.bytes": size, f"{name}.eagain": eagain}


def test_tokens_per_second_are_of_the_interval() -> None:
    meters = measure(
        reading(10, prompt_tokens=100, generation_tokens=50), reading(12, prompt_tokens=300, generation_tokens=80, running=4), PIPE
    )
    assert (meters.seconds, meters.prompt_per_s, meters.generation_per_s, meters.stats.running) == (2, 100, 15, 4)


def test_means_are_of_the_interval_and_of_all() -> None:
    before = {"front-7": {"request.ttft_ns": 6 * SECOND, "request.ttft_count": 2, "request.itl_ns": 8, "request.itl_count": 4}}
    now = {"front-7": {"request.ttft_ns": 9 * SECOND, "request.ttft_count": 3, "request.itl_ns": 8, "request.itl_count": 4}}
    meters = measure(reading(0, before), reading(1, now), PIPE)
    assert meters.ttft == Mean(recent=3.0, overall=3.0)
    assert meters.itl == Mean(recent=None, overall=2e-9)
    assert meters.queue == Mean(recent=None, overall=None)


def test_loop_lag_and_utilisation() -> None:
    before = {"front-7": {"loop.ticks": 10, "loop.lag_ns": 10**6, "loop.lag_max_ns": 9 * 10**6, "loop.busy_ns": 0, "loop.wall_ns": 0}}
    now = {"front-7": {"loop.ticks": 20, "loop.lag_ns": 31 * 10**6, "loop.lag_max_ns": 10**7, "loop.busy_ns": 300, "loop.wall_ns": 400}}
    loop = measure(reading(0, before), reading(1, now), PIPE).loop
    assert loop is not None
    assert (loop.lag.recent, loop.lag.overall, loop.lag_max_s, loop.utilisation) == (0.003, 0.00155, 0.01, 0.75)


def test_step_parts_are_shares_of_time_and_never_more_than_all() -> None:
    def steps(device_ns: int) -> dict[str, dict[str, int]]:
        return {"engine-8": {"step.count": device_ns // 10**8, "step.device_ns": device_ns, "step.sample_ns": device_ns // 4}}

    half = measure(reading(0, steps(0)), reading(2, steps(SECOND)), PIPE).step
    assert half is not None
    assert (half.per_s, half.parts["device"], half.parts["sample"], half.parts["schedule"]) == (5, 0.5, 0.125, 0)
    over = measure(reading(0, steps(0)), reading(1, steps(4 * SECOND)), PIPE).step
    assert over is not None
    assert dict(over.parts) == {"schedule": 0, "launch": 0, "device": 0.8, "sample": 0.2, "output": 0}


def traffic(sent: int, received: int, *, before: tuple[int, int], running: int = 0) -> Traffic:
    def at(seconds: float, sent: int, received: int) -> Reading:
        pages = {"front-7": socket("input", "sent", sent, 100 * sent, 2 * sent), "engine-8": socket("input", "received", received)}
        return reading(seconds, pages, running=running)

    (found,) = measure(at(0, *before), at(2, sent, received), PIPE).traffic
    return found


def test_traffic_of_a_channel_from_both_ends() -> None:
    expected = Traffic("input", "front", "engine", sent=Flow(3, 300, 6, 10), received=Flow(2, 0, 0, 8), depth=2, lost=0)
    assert traffic(10, 8, before=(4, 4)) == expected


def test_what_waits_is_lost_only_once_nothing_can_still_take_it() -> None:
    assert traffic(10, 8, before=(10, 8)).lost == 2
    assert traffic(10, 8, before=(10, 8), running=1).lost == 0
    assert traffic(10, 8, before=(10, 7)).lost == 0
    assert traffic(10, 8, before=(9, 8)).lost == 0
    assert traffic(8, 10, before=(8, 10)).depth == 0


def test_an_answer_on_the_same_channel_is_a_direction_of_its_own() -> None:
    pages = {
        "front-7": socket("data", "sent", 1) | socket("data", "received", 1),
        "engine-8": socket("data", "sent", 1) | socket("data", "received", 1),
    }
    found = [(t.name, t.source, t.target) for t in measure(reading(0, pages), reading(1, pages), MqClient.shape).traffic]
    assert found == [("data", "front", "engine"), ("data", "engine", "front")]


def test_processes_with_their_cpu_and_both_roles_of_one() -> None:
    def pages(cpu_ns: int) -> dict[str, dict[str, int]]:
        seen = {"process.front.cpu_ns": cpu_ns, "process.front.rss_bytes": 5}
        return {"engine-7": {}, "proxy-9": {}, "front-7": {}, "observer-1": seen}

    meters = measure(reading(0, pages(0)), reading(2, pages(SECOND)), PIPE)
    assert meters.processes == (ProcessMeter(("front", "engine"), 7, 0.5, 5), ProcessMeter(("proxy",), 9, None, None))


def test_of_two_observers_the_one_that_still_looks_is_believed() -> None:
    def page(looks: int, cpu_ns: int, rss_bytes: int) -> dict[str, int]:
        return {"probe.process.events": looks, "process.front.cpu_ns": cpu_ns, "process.front.rss_bytes": rss_bytes}

    gone = page(90, 80, 70)
    before, now = ({"front-7": {}, "observer-1": gone, "observer-2": page(looks, looks * SECOND, 5)} for looks in (1, 2))
    assert measure(reading(0, before), reading(1, now), PIPE).processes == (ProcessMeter(("front",), 7, 1.0, 5),)


def test_ranks_of_a_model_are_those_that_the_last_observer_sees() -> None:
    def page(looks: int, pid: int, cpu_ns: int) -> dict[str, int]:
        return {"probe.process.events": looks, "process.rank-1.pid": pid, "process.rank-1.cpu_ns": cpu_ns, "process.rank-1.rss_bytes": 5}

    def seen(pid: int) -> tuple[ProcessMeter, ...]:
        before, now = ({"front-7": {}, "observer-1": page(9, 99, 8), "observer-2": page(looks, pid, looks * SECOND)} for looks in (1, 2))
        return measure(reading(0, before), reading(1, now), PIPE).processes

    assert seen(8) == (ProcessMeter(("front",), 7, None, None), ProcessMeter(("rank-1",), 8, 1.0, 5))
    assert seen(0) == (ProcessMeter(("front",), 7, None, None),), "it is gone"


def test_probes_report_what_they_cost_together() -> None:
    def pages(ns: int) -> dict[str, dict[str, int]]:
        front = {"probe.loop.ns": ns, "probe.loop.dropped": 1, "probe.socket.input.sent.ns": ns}
        return {"front-7": front, "engine-8": {"probe.steps.ns": 2 * ns, "probe.steps.dropped": 2}}

    meters = measure(reading(0, pages(0)), reading(1, pages(10**7)), PIPE)
    assert (meters.probe_cpus, meters.probe_dropped) == (0.04, 3)


def test_without_a_recording_only_the_engine_is_known() -> None:
    meters = measure(reading(0), reading(1, running=1), PIPE)
    assert (meters.loop, meters.step, meters.processes, meters.traffic, meters.finished, meters.probe_cpus) == (
        None,
        None,
        (),
        (),
        None,
        None,
    )


def test_a_process_that_joins_or_counts_anew_makes_no_burst() -> None:
    joined = {"front-7": socket("input", "sent", 1000)}
    assert measure(reading(0), reading(1, joined), PIPE).traffic[0].sent == Flow(0, 0, 0, 1000)
    anew = {"front-7": socket("input", "sent", 3)}
    assert measure(reading(0, joined), reading(1, anew), PIPE).traffic[0].sent == Flow(0, 0, 0, 3)


COUNTERS = st.dictionaries(
    st.sampled_from(["front-7", "engine-8", "engine-7", "observer-1"]),
    st.dictionaries(
        st.sampled_from([*socket("input", "sent", 0), *socket("input", "received", 0), "loop.wall_ns", "loop.ticks", "step.count"]),
        st.integers(0, 2**62),
    ),
)


@given(COUNTERS, COUNTERS)
def test_no_rate_and_no_depth_is_below_zero(before: dict[str, dict[str, int]], now: dict[str, dict[str, int]]) -> None:
    meters = measure(reading(0, before), reading(1, now), PIPE)
    for one in meters.traffic:
        assert min(one.depth, one.lost, *vars(one.sent).values(), *vars(one.received).values()) >= 0


@given(st.lists(COUNTERS, min_size=1, max_size=8), st.integers(1, 5))
def test_history_keeps_the_newest_as_they_were(all_counters: list[dict[str, dict[str, int]]], kept: int) -> None:
    history = History(kept)
    readings = [reading(at, counters) for at, counters in enumerate(all_counters)]
    for one in readings:
        history.add(one)
    assert history.last() == readings[-kept:]
    assert history.last(1.0) == readings[-min(kept, 2) :]
    assert history.stats(0.0) == [readings[-1].stats]


def test_an_hour_of_readings_is_small() -> None:
    history, count = History(1000), 300
    tracemalloc.start()
    for at in range(count):
        history.add(reading(at, {"front-7": {f"counter.{index}": SECOND + index for index in range(200)}}))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / count < 3072


def test_sampler_looks_reads_and_takes_a_last_reading() -> None:
    looks: list[str] = []
    sampler = Sampler(
        lambda: EngineStats(stamp_ns=len(looks)),
        lambda: {"front-7": {"looks": len(looks)}},
        lambda: looks.append(threading.current_thread().name),
    )
    until_sync(lambda: len(sampler.readings()) >= 2)
    assert not sampler.stopped
    before = len(looks)
    sampler.stop()
    assert sampler.stopped
    assert set(looks) == {"mqlab-sampler"}
    assert sampler.readings()[-1].counters["front-7"]["looks"] == len(looks) > before - 1
    assert [one.stats for one in sampler.readings()] == sampler.pulse()
    assert len(sampler.samples()) >= len(sampler.pulse())


def test_sampler_goes_on_without_a_probe_that_fails_and_past_an_engine_that_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    calls = iter(range(10**6))

    def stats() -> EngineStats:
        if (call := next(calls)) % 2:
            raise EngineDeadError("gone")
        return EngineStats(stamp_ns=call)

    def look() -> None:
        raise RuntimeError("broken")

    sampler = Sampler(stats, lambda: {"front-7": {"a": 1}}, look)
    until_sync(lambda: len(sampler.readings()) >= 2)
    sampler.stop()
    assert sampler.readings()[-1].counters == {"front-7": {"a": 1}}
    assert [record.message for record in caplog.records] == ["a probe of the dashboard failed and is dropped"]


def test_sampler_of_a_recording_reads_what_processes_write_and_looks_at_them(tmp_path: Path) -> None:
    front = Sink(tmp_path, "front")
    front.block("loop.ticks").write(7)
    sampler = Sampler.of(EngineStats, tmp_path, {"front": os.getpid()})
    until_sync(lambda: len(sampler.readings()) >= 2)
    sampler.stop()
    front.close()
    counters = sampler.readings()[-1].counters
    assert counters[f"front-{os.getpid()}"] == {"loop.ticks": 7}
    assert counters[f"observer-{os.getpid()}"]["process.front.cpu_ns"] > 0


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (7, "7"), (0.5, "0.50"), (12.34, "12.3"), (999.7, "1.00 k"), (1234, "1.23 k"), (5.6e6, "5.60 M")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_units() -> None:
    assert [data(812), data(65_000.0)] == ["812 B", "65.0 kB"]
    assert [duration(s) for s in (None, 0.0, 12e-6, 0.0453, 1.5)] == ["–", "0 µs", "12.0 µs", "45.3 ms", "1.50 s"]
    assert [percent(s) for s in (0.0, 0.004, 0.41, 1.97)] == ["0 %", "0.4 %", "41 %", "197 %"]


def test_sparkline_ends_at_the_right_edge_and_reaches_its_top() -> None:
    curve = sparkline([(0, 9.0), (50, 0.0), (60, 5.0), (100, 10.0)], (10, 20, 60, 40), seconds=60)
    assert curve.line == "M 20.0 60.0 L 30.0 40.0 L 70.0 20.0"
    assert curve.area == curve.line + " V 60.0 H 20.0 Z"
    assert curve.top == 10.0
    assert sparkline([(0, 3.0)], (0, 0, 1, 1), 60).line == sparkline([], (0, 0, 1, 1), 60).line == ""
