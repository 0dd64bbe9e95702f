"""torch.profiler in an engine, started and stopped by control calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mqlab.config import EngineConfig
from mqlab.engine.profile import Profiler
from mqlab.errors import CallError
from mqlab.lab.session import Session
from mqlab.probes import torchprof
from mqlab.record.operators import TorchCapture


def calls_of_mm(path: str) -> int:
    return sum(one.calls for one in TorchCapture.load(path).operators if one.name == "aten::mm")


def test_a_capture_has_the_operators_of_its_steps_and_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchprof, "MAX_STEPS", 2)
    profiler, one = Profiler(), torch.ones(4, 4)
    path = profiler.start(str(tmp_path / "x.trace.json"), "torch")
    with pytest.raises(CallError, match="stop_profile first"):
        profiler.start(None, "torch")
    for _ in range(5):
        torch.mm(one, one)
        profiler.stepped()
    assert profiler.stop() == path and calls_of_mm(path) == 2
    again = profiler.start(str(tmp_path / "y.trace.json"), "torch")
    torch.mm(one, one)
    assert calls_of_mm(profiler.stop()) == 1 and again != path


@pytest.mark.full
def test_a_capture_of_an_engine_under_load(model_folder: Path, tmp_path: Path) -> None:
    with Session.of(EngineConfig(model=str(model_folder), num_threads=1, max_model_len=256), "mq") as lab:
        plain = lab.generate_sync("Hello", max_tokens=30, temperature=0.0).text
        path = lab.call("start_profile", str(tmp_path / "x.trace.json"), "torch")
        assert lab.generate_sync("Hello", max_tokens=30, temperature=0.0).text == plain
        assert lab.call("stop_profile", timeout=30) == path
        assert lab.generate_sync("Hello", max_tokens=30, temperature=0.0).text == plain
    names = [one.name for one in TorchCapture.load(path).top(20)]
    assert any("linear" in name for name in names)
