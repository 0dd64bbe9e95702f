"""The shared page: what one side writes, the other reads, at any moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlab.config import Timing
from mqlab.types import EngineStats
from mqlab.wire import statspage
from mqlab.wire.liveness import judge
from mqlab.wire.statspage import Phase, StatsPage

COUNTERS = {
    "steps": 1,
    "running": 2,
    "waiting": 3,
    "blocks_used": 4,
    "blocks_total": 5,
    "prompt_tokens": 6,
    "generation_tokens": 2**63,
    "preemptions": 8,
}


SHORT = Timing(step_limit=0.3)
"""Shorter than the interval at which an idle engine stamps, which stays at its default."""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the page's clock, in seconds."""
    clock = [1_000 * 10**9]
    monkeypatch.setattr(statspage.time, "monotonic_ns", lambda: clock[0])

    def set_to(seconds: float) -> None:
        clock[0] = round((1_000 + seconds) * 1e9)

    return set_to


def test_a_new_page_is_loading(tmp_path: Path, now: Callable[[float], None]) -> None:
    page = StatsPage.create(tmp_path / "page")
    now(3)
    stamp = page.stamp()
    assert (stamp.phase, stamp.age_s) == (Phase.LOADING, 3)
    page.close()


@pytest.mark.parametrize("phase", Phase)
def test_both_sides_see_one_page(tmp_path: Path, phase: Phase) -> None:
    writer = StatsPage.create(tmp_path / "page")
    reader = StatsPage.open(tmp_path / "page")
    writer.enter(phase)
    writer.write(EngineStats(**COUNTERS))
    assert reader.stamp().phase is phase
    stats = reader.read()
    assert {name: getattr(stats, name) for name in COUNTERS} == COUNTERS
    for page in (writer, reader):
        page.close()
        page.close()


class Between:
    """Words between whose reads another process gets its turn."""

    def __init__(self, words: Any, turn: Callable[[], None]) -> None:
        self._words = words
        self._turn = turn

    def __getitem__(self, index: int) -> int:
        value = self._words[index]
        self._turn()
        return value


def test_a_new_phase_never_looks_old(now: Callable[[float], None]) -> None:
    """The writer enters a phase while the reader is between two words: a long load must not become a long step."""
    page = StatsPage()
    page.enter(Phase.LOADING)
    now(300)
    words = page._words
    page._words = Between(words, lambda: _enter(words))  # type: ignore[assignment]
    stamp = page.stamp()
    assert stamp.phase is Phase.LOADING or stamp.age_s < 1


def _enter(words: Any) -> None:
    page = StatsPage()
    page._words = words
    page.enter(Phase.STEP)


def test_a_clock_read_before_the_stamp_gives_no_negative_age(now: Callable[[float], None]) -> None:
    page = StatsPage()
    now(5)
    page.enter(Phase.IDLE)
    now(4.9)
    assert page.stamp().age_s == 0


@pytest.mark.parametrize(
    ("timing", "phase", "seconds", "state"),
    [
        (Timing(), Phase.LOADING, 10_000, "ready"),
        (Timing(), Phase.STEP, 59, "ready"),
        (Timing(), Phase.STEP, 61, "hung"),
        (Timing(), Phase.CALL, 61, "hung"),
        (Timing(), Phase.IDLE, 60.9, "ready"),
        (Timing(), Phase.IDLE, 61.5, "hung"),
        (SHORT, Phase.STEP, 0.25, "ready"),
        (SHORT, Phase.STEP, 0.35, "hung"),
        (SHORT, Phase.IDLE, 1.25, "ready"),
        (SHORT, Phase.IDLE, 1.35, "hung"),
    ],
)
def test_each_phase_has_its_own_limit(now: Callable[[float], None], timing: Timing, phase: Phase, seconds: float, state: str) -> None:
    page = StatsPage()
    page.enter(phase)
    now(seconds)
    health = judge(page, timing)
    assert (health.state, health.phase, health.phase_age_s) == (state, phase.name.lower(), seconds)
    if state == "hung":
        assert phase.name.lower() in health.detail
