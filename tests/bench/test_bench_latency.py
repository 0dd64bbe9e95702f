"""The latency benchmark: batches one after the other, and what is told of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corespy import Spy
from serving import echo_wiring

from mqlab.bench.latency import latency, main
from mqlab.bench.latency_result import LatencyResult
from mqlab.bench.options import LatencyConfig
from mqlab.config import EngineConfig, Timing
from mqlab.errors import ConfigError
from mqlab.wire.spec import Spec

SMALL: dict[str, Any] = {"batch_size": 2, "input_len": 5, "output_len": 3, "n": 2, "num_iters_warmup": 1, "num_iters": 3}


def test_a_batch_is_its_prompts_times_n_and_each_batch_is_fresh(model_folder: Path) -> None:
    Spy.prompts.clear()
    wiring = replace(echo_wiring(model_folder), wraps=(Spec("corespy:Spy"),))
    result = latency(EngineConfig(), LatencyConfig(**SMALL), Timing(), wiring=wiring)
    assert len(result.latencies_s) == 3
    assert len(Spy.prompts) == 4 * 2 * 2, "one batch to warm up, three to measure"
    assert len(set(Spy.prompts)) == 4 * 2
    assert {len(prompt) for prompt in Spy.prompts} == {5}


@pytest.mark.parametrize("topology", ["aio", "v1"])
def test_it_prints_like_vllm_and_writes_a_record(topology: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "latency.json"
    assert main(EngineConfig(model="echo"), LatencyConfig(topology=topology, output_json=str(file), **SMALL), Timing()) == 0
    shown = capsys.readouterr()
    record = json.loads(file.read_text())
    assert f"Avg latency: {record['avg_latency']} seconds\n" in shown.out
    assert f"99% percentile latency: {record['percentiles']['99']} seconds" in shown.out
    assert f"topology {topology}, " in shown.out
    assert "2 prompts × 2 sequences of 5 + 3 tokens" in shown.out
    assert "3 batches, 1 before them to warm up, not counted" in shown.out
    assert list(record["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert record["avg_latency"] == pytest.approx(sum(record["latencies"]) / 3)
    assert isinstance(record["workload"]["seed"], int)


def test_a_result_can_be_looked_at() -> None:
    result = LatencyResult(latencies_s=(1.0, 2.0, 3.0), workload=SMALL)
    assert result.percentiles_s == pytest.approx({10: 1.2, 25: 1.5, 50: 2, 75: 2.5, 90: 2.8, 99: 2.98})
    assert repr(result) == "<2 prompts × 2 sequences of 5 + 3 tokens: 2 s on average of 3>"
    assert result.to_pandas()["latency_s"].tolist() == [1, 2, 3]
    assert "2.98 s" in result._repr_html_()
    assert result.plot()._repr_png_().startswith(b"\x89PNG")


def test_a_batch_that_cannot_fit_is_refused_with_numbers(model_folder: Path) -> None:
    with pytest.raises(ConfigError, match="needs 65 tokens; 'echo' holds 64"):
        latency(EngineConfig(), LatencyConfig(input_len=60, output_len=5), Timing(), wiring=echo_wiring(model_folder, max_model_len=64))


@pytest.mark.parametrize("name", ["batch_size", "input_len", "output_len", "n", "num_iters"])
def test_sizes_of_nothing_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}=0 must be at least 1"):
        LatencyConfig(**{**SMALL, name: 0})
