"""No bench measures a warm prefix cache, or guesses that held, without saying so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mock_openai import Script, mock_openai
from small_model import write_small_model

from mqlab.bench.arm_work import Work, make_requests
from mqlab.bench.latency import latency
from mqlab.bench.load_options import LoadConfig
from mqlab.bench.options import DatasetConfig, LatencyConfig, ThroughputConfig
from mqlab.bench.reuse import Reuse
from mqlab.bench.serve import serve_bench
from mqlab.bench.serve_result import ServeResult
from mqlab.bench.throughput import throughput
from mqlab.bench.throughput_result import ThroughputResult
from mqlab.config import EngineConfig, Timing
from mqlab.types import ModelInfo

INFO = ModelInfo(name="m", vocab_size=1000, max_model_len=100, max_prompt_len=99)


@pytest.fixture(scope="module")
def small(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    """An engine that computes."""
    folder = write_small_model(tmp_path_factory.mktemp("small") / "model", model_folder)
    return EngineConfig(model=str(folder), num_threads=1, num_kv_blocks=200, num_speculative_tokens=3)


def test_what_a_run_found_in_the_cache_is_in_its_result_but_not_what_the_warm_up_did(small: EngineConfig) -> None:
    dataset = DatasetConfig(dataset_name="prefix", input_len=48, prefix_len=32, num_prefixes=1, output_len=24)
    result = throughput(small, ThroughputConfig(num_prompts=4), dataset, Timing())
    assert (result.reuse.looked_up, result.reuse.found) == (4 * 48, 3 * 32)
    assert "50.0% of the prompt tokens came from the prefix cache" in str(result)
    assert result.as_record()["reuse"]["found"] == 96 and "came from the prefix cache" in result._repr_html_()
    assert not [text for text in result.warnings if "cache" in text], "that is what this dataset is for"


def test_batches_are_cold_but_for_the_sequences_of_one_prompt(small: EngineConfig) -> None:
    sizes: dict[str, Any] = {"batch_size": 1, "input_len": 33, "output_len": 2, "num_iters_warmup": 1, "num_iters": 2}
    for n, found in ((1, 0), (2, 2 * 32)):
        result = latency(small, LatencyConfig(n=n, **sizes), Timing())
        assert (result.reuse.looked_up, result.reuse.found) == (2 * n * 33, found)
        assert "% of the prompt tokens came from the prefix cache" in str(result)


def test_prompts_that_ought_to_be_new_and_were_not_are_warned_of() -> None:
    def result(dataset: str, **reuse: int) -> ThroughputResult:
        facts: dict[str, Any] = {"elapsed_s": 1.0, "prompt_tokens": (100,), "output_tokens": (1,), "ends_s": (1.0,)}
        return ThroughputResult(**facts, dataset={"dataset_name": dataset}, reuse=Reuse(**reuse))

    assert "warning: 40% of the prompt tokens were in the engine's prefix cache" in str(result("sharegpt", looked_up=100, found=40))
    assert result("prefix", looked_up=100, found=40).warnings == result("random", looked_up=100).warnings == []
    assert "cache" not in str(result("random")), "an engine without one"


def test_prompts_of_a_round_share_what_they_are_asked_to_and_no_more() -> None:
    first, second = (make_requests(Work(seed, 5, 20, 4, prefix_len=12), INFO) for seed in (1, 2))
    for requests in (first, second):
        assert {len(one.prompt) for one in requests} == {20}
        assert len({tuple(one.prompt[:12]) for one in requests}) == 1 and len({tuple(one.prompt[12:]) for one in requests}) == 5
    assert first[0].prompt[:12] != second[0].prompt[:12], "another round finds nothing in the cache"


def page(system: str, looked_up: int, found: int, guessed: int = 0, kept: int = 0) -> str:
    counts = {"prefix_cache_queries": looked_up, "prefix_cache_hits": found}
    counts |= {"spec_decode_num_draft_tokens": guessed, "spec_decode_num_accepted_tokens": kept}
    lines = [f'{system}:{name}_total{{engine="0",model="m"}} {count}.0' for name, count in counts.items()]
    return "\n".join(
        [f"# HELP {system}:prefix_cache_queries_total 7", *lines, f'{system}:prefix_cache_queries_created{{engine="0"}} 1.7e9', ""]
    )


def loaded(*metrics: str) -> ServeResult:
    with mock_openai(Script(usage={"prompt_tokens": 8, "completion_tokens": 3}, metrics=metrics)) as mock:
        load = LoadConfig(base_url=mock.url, num_prompts=3, num_workers=1, disable_tqdm=True)
        return serve_bench(load, DatasetConfig(input_len=8, output_len=3, seed=1))


@pytest.mark.parametrize("system", ["mqlab", "vllm"])
def test_a_servers_counters_tell_where_its_answers_do_not(system: str) -> None:
    result = loaded(page(system, 1000, 900, 50, 50), page(system, 1024, 906, 150, 75))
    assert result.reuse == Reuse(looked_up=24, found=6, guessed=100, kept=25) and result.cached_share == 0.25
    assert "Prompt tokens from the prefix cache: 25.0%" in " ".join(str(result).split())
    assert "Guessed tokens that were kept: 25.0%" in " ".join(str(result).split())
    assert "25% of the prompt tokens were in the server's prefix cache" in result.warnings
    assert result.as_record()["reuse"] == {"looked_up": 24, "found": 6, "guessed": 100, "kept": 25}


@pytest.mark.parametrize("metrics", [(), ("",), ("x:prefix_cache_queries_total many\n",)])
def test_a_server_that_does_not_count_is_loaded_all_the_same(metrics: tuple[str, ...]) -> None:
    result = loaded(*metrics)
    assert result.reuse is None and len(result.good) == 3
    assert "not told" in str(result) and "Guessed" not in str(result)
