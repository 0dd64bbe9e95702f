"""A runner that is not well while nobody asks anything of it: every core says so, whatever is wrapped around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from checksum import ChecksumRunner, build_core, build_runner

from mqlab.engine.echo import build as build_echo
from mqlab.engine.service import Service
from mqlab.errors import RankDied
from mqlab.probes.faults import FaultyCore
from mqlab.probes.runner import MeteredRunner, Parts
from mqlab.types import Request, SamplingParams
from mqlab.wire.statspage import StatsPage


def break_down(runner: ChecksumRunner) -> None:
    def check() -> None:
        raise RankDied("a rank is gone")

    runner.check = check  # type: ignore[method-assign]


def metered(runner: Any) -> Any:
    core = build_core(runner)
    core.runner = MeteredRunner(runner, Parts())
    return core


@pytest.mark.parametrize("build", [build_core, metered, lambda runner: FaultyCore(build_core(runner))])
def test_an_idle_engine_looks_after_its_runner(build: Callable[[ChecksumRunner], Any]) -> None:
    runner = build_runner()
    service = Service(build(runner), StatsPage(), 0)
    service.idle()
    break_down(runner)
    with pytest.raises(RankDied, match="a rank is gone"):
        service.idle()


def test_a_step_does_not_ask() -> None:
    """It finds out by itself; this is paid for between requests only."""
    runner = build_runner()
    service = Service(build_core(runner), StatsPage(), 0)
    break_down(runner)
    service.apply(Request("a", [3, 4], SamplingParams(max_tokens=3)))
    while service.has_work:
        service.step()


def test_without_a_runner_there_is_nothing_to_be_unwell() -> None:
    Service(build_echo(), StatsPage(), 0).idle()
    runner = build_runner()
    core = build_core(runner)
    break_down(runner)
    core.close()
    core.check()
