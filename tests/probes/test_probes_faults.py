"""Faults happen where and when they were asked for, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from mqlab.engine import echo
from mqlab.engine.core import apply, step
from mqlab.errors import InvalidRequest
from mqlab.probes.faults import FaultyCore, InjectedFault
from mqlab.types import Abort, Call, EngineStats, Event, Reply, Request, SamplingParams, Step

THREE = SamplingParams(max_tokens=3)


def faulty(**faults: Any) -> FaultyCore:
    return FaultyCore(echo.build(), **faults)


def drained(core: FaultyCore) -> list[Event]:
    events: list[Event] = []
    while core.has_work:
        events += step(core)
    return events


def tokens_of(events: list[Event]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for delta in (delta for event in events if isinstance(event, Step) for delta in event.deltas):
        found.setdefault(delta.id, []).extend(delta.tokens)
    return found


def test_without_faults_it_is_the_core_inside() -> None:
    core = faulty()
    core.add(Request("a", [3, 4], THREE))
    core.add(Request("b", [5], THREE))
    assert tokens_of(drained(core)) == {"a": [3, 4, 3], "b": [5, 5, 5]}
    assert core.info.name == "echo"
    (reply,) = core.call(Call(1, "stats"))
    assert reply is not None and isinstance(reply.value, EngineStats)
    core.close()


@pytest.mark.parametrize("part", ["begin", "wait", "finish"])
def test_one_step_fails_in_one_part(part: str) -> None:
    core = faulty(fail_step=2, fail_in=part)
    core.add(Request("a", [3], THREE))
    step(core)
    with pytest.raises(InjectedFault, match=f"step 2 was told to fail in {part}"):
        step(core)


def test_building_fails() -> None:
    with pytest.raises(InjectedFault, match="fail_build"):
        faulty(fail_build=True)


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(TypeError, match="explode"):
        faulty(explode=True)


def test_aborts_fail() -> None:
    core = faulty(fail_abort=True)
    with pytest.raises(InjectedFault, match="fail_abort"):
        apply(core, Abort(("a",)))


def test_requests_are_refused_or_fail_alone() -> None:
    core = faulty(refuse=("no",), fail_requests=("ill",))
    with pytest.raises(InvalidRequest, match="'no'"):
        core.add(Request("no", [3], THREE))
    core.add(Request("ill", [3], THREE))
    core.add(Request("well", [4], THREE))
    events = drained(core)
    assert tokens_of(events) == {"ill": [], "well": [4, 4, 4]}
    assert isinstance(events[0], Step)
    (ill,) = (delta for delta in events[0].deltas if delta.id == "ill")
    assert (ill.finish, ill.error and ill.error.kind) == ("error", "failed")


def test_its_own_calls_wait_for_the_step_like_the_cores() -> None:
    core = faulty()
    core.add(Request("a", [3], THREE))
    flight = core.begin()
    assert core.call(Call(1, "fail")) == [] and core.call(Call(2, "ping")) == []
    replies = {event.id: event for event in core.finish(flight.wait()) if isinstance(event, Reply)}
    assert "told to fail" in (replies[1].error or "") and replies[2].value is True
    assert core.call(Call(3, "hang", (0,))) == [Reply(3)]
    (unknown,) = core.call(Call(4, "frobnicate"))
    assert unknown is not None and "unknown call 'frobnicate'" in (unknown.error or "") and "hang" in unknown.error
