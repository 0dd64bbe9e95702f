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

from mqlab.bench.options import DatasetConfig, ThroughputConfig
from mqlab.bench.throughput import main, measure, throughput
from mqlab.bench.throughput_result import ThroughputResult
from mqlab.config import EngineConfig, Timing
from mqlab.errors import ConfigError, EngineDeadError
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

FIVE: dict[str, Any] = {"num_prompts": 5}
SMALL: dict[str, Any] = {"input_len": 7, "output_len": 3}
ECHO = EngineConfig(model="echo")


async def run(wiring: Wiring, dataset: DatasetConfig | None = None, **workload: Any) -> ThroughputResult:
    return await measure(wiring, EngineConfig(), ThroughputConfig(**{**FIVE, **workload}), dataset or DatasetConfig(**SMALL))


@pytest.mark.parametrize("topology", ["inproc", "v1"])
@pytest.mark.parametrize("detokenize", [False, True])
async def test_every_token_is_counted(model_folder: Path, topology: str, detokenize: bool) -> None:
    result = await run(echo_wiring(model_folder), topology=topology, detokenize=detokenize)
    assert (result.num_requests, result.prompt_tokens, result.output_tokens) == (5, (7,) * 5, (3,) * 5)
    assert 0 < max(result.ends_s) <= result.elapsed_s


@pytest.fixture(autouse=True)
def forget() -> None:
    """The spy remembers per test."""
    Spy.prompts.clear()


async def prompts_of(model_folder: Path, seed: int | None) -> list[tuple[int, ...]]:
    Spy.prompts.clear()
    await run(watched(model_folder, "Spy"), DatasetConfig(seed=seed, **SMALL))
    return list(Spy.prompts)


def watched(model_folder: Path, wrapper: str) -> Wiring:
    return replace(echo_wiring(model_folder), wraps=(Spec(f"corespy:{wrapper}"),))


async def test_prompts_are_fresh_unless_a_seed_repeats_them(model_folder: Path) -> None:
    one = await prompts_of(model_folder, 1)
    again = await prompts_of(model_folder, 1)
    assert len(set(one)) == len(one) == 10, "five to warm up, five to measure, none twice"
    assert one == again
    assert not set(await prompts_of(model_folder, None)) & set(await prompts_of(model_folder, None))


async def test_text_is_tokenised_and_lengths_are_the_datasets(model_folder: Path, tmp_path: Path) -> None:
    turns = [{"value": "What is the capital of France?"}, {"value": "The capital of France is Paris."}]
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([{"conversations": turns}]))
    result = await run(echo_wiring(model_folder), DatasetConfig(dataset_path=str(path)), num_prompts=1)
    assert (result.prompt_tokens, result.output_tokens) == ((7,), (7,))
    assert result.dataset["dataset_name"] == "sharegpt"


def test_it_prints_like_vllm_and_writes_a_record(model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    workload = ThroughputConfig(output_json=str(file), async_engine=True, **FIVE)
    engine = EngineConfig(num_scheduler_steps=8)
    assert main(engine, workload, DatasetConfig(**SMALL), Timing(), wiring=echo_wiring(model_folder)) == 0
    shown = capsys.readouterr()
    number = r"(\d+\.\d\d)"
    line = re.search(rf"^Throughput: {number} requests/s, {number} total tokens/s, {number} output tokens/s$", shown.out, re.M)
    assert line is not None
    assert "topology aio; without detokenising" in shown.out
    assert "after 5 to warm up, which are not counted" in shown.out
    assert "5/5" in shown.err
    record = json.loads(file.read_text())
    assert (record["num_requests"], record["total_num_tokens"], record["warm_up_requests"]) == (5, 50, 5)
    assert (record["workload"]["topology"], record["engine"]["num_scheduler_steps"]) == ("aio", 8)
    assert record["tokens_per_second"] == pytest.approx(50 / record["elapsed_time"])
    assert f"seed {record['dataset']['seed']})" in shown.out
    assert record["cpu"]["cpus_used"]["front"] >= 0
    assert record["meta"]["python"]


RESULT = ThroughputResult(
    elapsed_s=2.0,
    prompt_tokens=(5, 5),
    output_tokens=(10, 10),
    ends_s=(1.0, 2.0),
    workload={"topology": "mq"},
    dataset={"dataset_name": "<x>", "seed": 3},
)


def test_a_result_can_be_looked_at() -> None:
    assert repr(RESULT) == "<Throughput: 1.00 requests/s, 15.00 total tokens/s, 10.00 output tokens/s>"
    assert list(RESULT.to_pandas().columns) == ["prompt_tokens", "output_tokens", "end_s"]
    html = RESULT._repr_html_()
    assert "15.00" in html
    assert "&lt;x&gt;, seed 3" in html
    assert RESULT.plot()._repr_png_().startswith(b"\x89PNG")


async def test_a_workload_that_cannot_fit_is_refused_with_numbers(model_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"60 prompt and 5 new tokens needs 65 tokens; 'echo' holds 64"):
        await run(echo_wiring(model_folder, max_model_len=64), DatasetConfig(input_len=60, output_len=5))


async def test_a_failed_request_is_a_failed_run(model_folder: Path) -> None:
    with pytest.raises(EngineDeadError, match="the third request"):
        await run(watched(model_folder, "Broken"))


def test_echo_measures_a_layout_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    workload = ThroughputConfig(num_prompts=3, topology="v1")
    assert main(ECHO, workload, DatasetConfig(**SMALL), Timing()) == 0
    shown = capsys.readouterr()
    assert "Throughput: " in shown.out
    assert "engine starts: 00:0" in shown.err
    with pytest.raises(ConfigError, match="--detokenize needs a model"):
        throughput(ECHO, ThroughputConfig(detokenize=True), DatasetConfig(), Timing())


def test_a_bad_file_is_found_before_an_engine_starts(tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "chat.json"
    path.write_text('[{"conversations": []}')
    with pytest.raises(ConfigError, match="cut short"):
        throughput(EngineConfig(model=str(model_folder)), ThroughputConfig(topology="v1"), DatasetConfig(dataset_path=str(path)), Timing())
    assert "engine starts" not in capsys.readouterr().err
