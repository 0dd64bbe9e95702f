"""What of the device's benchmark outlives a failure: every figure but the one that failed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mqlab.bench.arm_run import Run
from mqlab.bench.arm_work import Work
from mqlab.bench.arms import Arm
from mqlab.bench.compare import ArmProcess
from mqlab.bench.device.engines import Group, rates
from mqlab.bench.device.options import DeviceConfig
from mqlab.bench.device.result import load_device
from mqlab.bench.device.run import device
from mqlab.config import EngineConfig
from mqlab.errors import BenchError
from mqlab.model.measure.rows import EngineRate, Facts, Skip

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
