"""What is shown while decode steps are compiled and captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mqlab.config import EngineConfig
from mqlab.model.accel.accelerator import HostAccelerator
from mqlab.model.accel.graphs import Graphs
from mqlab.model.load import build


class MadeUp(HostAccelerator):
    """A GPU that is none."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


@pytest.mark.parametrize(
    ("compiled", "words"), [(False, "capturing graphs:"), (True, "compiling and capturing graphs:")], ids=["eager", "compiled"]
)
def test_a_gpu_captures(compiled: bool, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, device: empty(*shape))
    monkeypatch.setattr(torch, "compile", lambda function: function)
    decoder: Any = SimpleNamespace(arch=SimpleNamespace(vocab=7), states=lambda batch, cache: batch, logits=lambda states, out: None)
    buffers: Any = SimpleNamespace(graph_batch=lambda size: size)
    Graphs(MadeUp(), decoder, [], buffers, (1, 4), compiled)
    shown = capsys.readouterr().err
    assert f"\r{words}" in shown and "0/2" in shown and "4 sequences" in shown and "1 sequence]" in shown and "2/2" in shown


@pytest.mark.parametrize(("compiled", "shown"), [(False, False), (True, True)], ids=["eager", "compiled"])
def test_a_cpu_captures_nothing(
    compiled: bool,
    shown: bool,
    make_model: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: function)
    make_model("Llama")
    capsys.readouterr()
    small: dict[str, Any] = {"num_kv_blocks": 20, "num_threads": 1, "max_num_seqs": 2}
    build(EngineConfig(model=str(tmp_path), device="cpu", attention_backend="torch", torch_compile=compiled, **small)).close()
    told = capsys.readouterr().err
    assert ("compiling:" in told) == shown
    assert "graph" not in told and "warming up" in told
