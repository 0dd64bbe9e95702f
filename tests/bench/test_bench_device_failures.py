"""What of the device's benchmark outlives a failure: every figure but the one that failed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from mqlab.bench.arm_run import Run
from mqlab.bench.arm_work import Work
from mqlab.bench.arms import Arm
from mqlab.bench.compare import ArmProcess
from mqlab.bench.device.cut_short import CutShort
from mqlab.bench.device.engines import Group, rates
from mqlab.bench.device.jobs import Job
from mqlab.bench.device.options import DeviceConfig
from mqlab.bench.device.process import Jobs
from mqlab.bench.device.result import load_device
from mqlab.bench.device.run import device
from mqlab.bench.device.steps import steps
from mqlab.config import EngineConfig
from mqlab.errors import BenchError
from mqlab.model.measure.rows import Bubble, EngineRate, Facts, Row, Skip
from mqlab.wire.spec import Spec

H200 = Facts("cuda", "NVIDIA H200", 139.8, 139.0, 90, 50.0)


class Answering(ArmProcess):
    """An engine that is up, and gives one figure until it fails."""

    def __init__(self, layout: str, works: int) -> None:
        self._layout, self._left = layout, works

    async def ready(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """It is."""

    async def run(self, work: Work) -> Run:
        """A figure, or a failure with what the process wrote last."""
        if not self._left:
            raise BenchError(f"arm {self._layout!r} failed while it ran: exit code 1\nTraceback\nCUDA error: an illegal memory access")
        self._left -= 1
        return Run(1.0, 10, 10.0, 10.0, 1.0, 1.0, 1.0, {}, 0.0, ["a"])

    def dismiss(self) -> None:
        """Nothing runs."""


def group(*layouts: str) -> Group:
    engine = EngineConfig(model="echo")
    return Group("echo", engine, layouts, num_prompts=1, input_len=4, output_len=4, rounds=3, seed=0, starting=2, seconds=60)


def test_an_engine_that_fails_in_a_round_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def launched(arm: Arm) -> AsyncIterator[ArmProcess]:
        yield Answering(arm.topology, works=2 if arm.topology == "mq" else 9)

    monkeypatch.setattr("mqlab.bench.device.engines.launched", launched)
    rows = rates(group("sync", "mq", "v1"), 60)
    assert {row.layout: row.tokens_per_s for row in rows if isinstance(row, EngineRate)} == {"sync": (10.0,) * 3, "v1": (10.0,) * 3}
    (skip,) = [row for row in rows if isinstance(row, Skip)]
    assert skip.name == "echo, mq" and "round 2" in skip.why and skip.why.endswith("CUDA error: an illegal memory access")


def test_no_round_is_begun_when_every_engine_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Slow(Answering):
        async def run(self, work: Work) -> Run:
            """A figure, or a failure that takes longer than there is for all."""
            now[0] += 0 if self._left else 100
            return await super().run(work)

    @asynccontextmanager
    async def launched(arm: Arm) -> AsyncIterator[ArmProcess]:
        yield Slow(arm.topology, works=1)

    monkeypatch.setattr("mqlab.bench.device.engines.launched", launched)
    monkeypatch.setattr("mqlab.bench.device.engines.time", SimpleNamespace(monotonic=lambda: now[0]))
    rows = rates(group("sync", "v1"), 60)
    assert sorted(row.name for row in rows if isinstance(row, Skip)) == ["echo, sync", "echo, v1"], (
        "no word of rounds for which no time was left"
    )
    assert len(rows) == 2


def test_engines_that_cannot_be_run_at_all_cost_no_other_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("mqlab.bench.device.run.rates", broken)
    monkeypatch.setattr("mqlab.bench.device.run._look", lambda *_: H200)
    file = tmp_path / "gpu.json"
    result = device(DeviceConfig(parts="engines", output_json=str(file)))
    why = {row.why for row in result.of(Skip) if row.part == "engines"}
    assert why == {"it failed: OSError: no more processes"}
    assert load_device(file).rows == result.rows, "what there is was written before the end"


FIGURE = Bubble("echo", 1, "plain", 1, 2.0, 1.0)
FAILING = """
from mqlab.bench.device.cut_short import CutShort

def measure(row):
    try:
        raise RuntimeError("an illegal memory\\naccess")
    except RuntimeError as error:
        raise CutShort([row]) from error
"""


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    """A job that gives a figure and then fails, where the process for jobs finds it."""
    (tmp_path / "failing_job.py").write_text(FAILING)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Spec("failing_job:measure", {"row": FIGURE})


def test_a_job_that_fails_behind_a_figure_keeps_it_and_the_next_gets_a_new_process(failing: Spec) -> None:
    with Jobs() as jobs:
        first = jobs.run(Spec("os:getpid"), 60).rows
        assert jobs.run(Spec("os:getpid"), 60).rows == first
        answer = jobs.run(failing, 60)
        assert answer.rows == [FIGURE]
        assert answer.error.startswith("behind 1 figures: RuntimeError: an illegal memory access (")
        assert jobs.run(Spec("os:getpid"), 60).rows != first


def test_a_figure_and_why_there_are_no_more_are_both_in_the_result(failing: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("steps", "echo, graphs", 1.0, failing)
    monkeypatch.setattr("mqlab.bench.device.run._look", lambda *_: H200)
    monkeypatch.setattr("mqlab.bench.device.run.plan", lambda *_: [job])
    figure, skip = device(DeviceConfig()).rows
    assert figure == FIGURE
    assert isinstance(skip, Skip) and (skip.part, skip.name) == ("steps", "echo, graphs") and "illegal memory access" in skip.why


def test_steps_give_what_they_had_when_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def times(*_: object) -> Iterator[Row]:
        yield FIGURE
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr("mqlab.bench.device.steps._runner_of", nullcontext)
    monkeypatch.setattr("mqlab.bench.device.steps._step_times", times)
    with pytest.raises(CutShort) as raised:
        steps(engine=EngineConfig(model="echo"), shapes=[(1, 8)], runs=1)
    assert raised.value.rows == [FIGURE] and isinstance(raised.value.__cause__, RuntimeError)


def test_a_full_disk_on_the_way_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    skips = [Skip("steps", "a", "no room"), Skip("steps", "b", "no room")]
    monkeypatch.setattr("mqlab.bench.device.run._look", lambda *_: H200)
    monkeypatch.setattr("mqlab.bench.device.run.plan", lambda *_: skips)
    monkeypatch.setattr("mqlab.bench.device.run.write_output", full)
    assert device(DeviceConfig(output_json=str(tmp_path / "gpu.json"))).rows == (*skips,)
