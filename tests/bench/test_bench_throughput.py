"""The throughput benchmark: what it counts, prints and writes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corespy import Spy
from serving import echo_wiring

from mqlab.bench.options import ThroughputConfig
from mqlab.bench.throughput import Throughput, main, measure
from mqlab.config import EngineConfig, Timing
from mqlab.errors import ConfigError, EngineDeadError
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

SMALL: dict[str, Any] = {"num_prompts": 5, "input_len": 7, "output_len": 3}


@pytest.mark.parametrize("topology", ["inproc", "v1"])
@pytest.mark.parametrize("detokenize", [False, True])
async def test_every_token_is_counted(model_folder: Path, topology: str, detokenize: bool) -> None:
    workload = ThroughputConfig(topology=topology, detokenize=detokenize, **SMALL)
    result = await measure(echo_wiring(model_folder), workload, seed=3)
    assert (result.num_requests, result.prompt_tokens, result.output_tokens) == (5, 35, 15)
    assert result.elapsed_s > 0


@pytest.fixture(autouse=True)
def forget() -> None:
    """The spy remembers per test."""
    Spy.prompts.clear()


async def prompts_of(model_folder: Path, seed: int) -> list[tuple[int, ...]]:
    Spy.prompts.clear()
    await measure(watched(model_folder, "Spy"), ThroughputConfig(**SMALL), seed=seed)
    return list(Spy.prompts)


def watched(model_folder: Path, wrapper: str) -> Wiring:
    return replace(echo_wiring(model_folder), wraps=(Spec(f"corespy:{wrapper}"),))


async def test_prompts_are_fresh_and_follow_from_the_seed(model_folder: Path) -> None:
    one = await prompts_of(model_folder, 1)
    again = await prompts_of(model_folder, 1)
    other = await prompts_of(model_folder, 2)
    assert len(set(one)) == len(one) == 10, "five to warm up, five to measure, none twice"
    assert one == again
    assert not set(one) & set(other)


def test_it_prints_like_vllm_and_writes_a_record(model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    workload = ThroughputConfig(output_json=str(file), async_engine=True, **SMALL)
    assert main(EngineConfig(), workload, Timing(), wiring=echo_wiring(model_folder)) == 0
    shown = capsys.readouterr()
    number = r"(\d+\.\d\d)"
    line = re.search(rf"^Throughput: {number} requests/s, {number} total tokens/s, {number} output tokens/s$", shown.out, re.M)
    assert line is not None
    assert "topology aio; without detokenising" in shown.out
    assert "5/5" in shown.err
    record = json.loads(file.read_text())
    assert record["total_num_tokens"] == 50
    assert record["workload"]["topology"] == "aio"
    assert record["tokens_per_second"] == pytest.approx(50 / record["elapsed_time"])


def test_rates() -> None:
    assert str(Throughput(2.0, 4, 10, 20)) == "Throughput: 2.00 requests/s, 15.00 total tokens/s, 10.00 output tokens/s"


async def test_a_workload_that_cannot_fit_is_refused_with_numbers(model_folder: Path) -> None:
    workload = ThroughputConfig(input_len=60, output_len=5)
    with pytest.raises(ConfigError, match=r"need 65 tokens; 'echo' holds 64"):
        await measure(echo_wiring(model_folder, max_model_len=64), workload, seed=0)


async def test_a_failed_request_is_a_failed_run(model_folder: Path) -> None:
    with pytest.raises(EngineDeadError, match="the third request"):
        await measure(watched(model_folder, "Broken"), ThroughputConfig(**SMALL), seed=0)


def test_echo_measures_a_layout_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    workload = ThroughputConfig(num_prompts=3, input_len=4, output_len=5, topology="v1")
    assert main(EngineConfig(model="echo"), workload, Timing()) == 0
    assert "Throughput: " in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--detokenize needs a model"):
        main(EngineConfig(model="echo"), ThroughputConfig(detokenize=True), Timing())
