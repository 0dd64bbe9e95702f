"""Commands as users of vLLM and SGLang write them: taken as they are, or refused with our name for it."""

from __future__ import annotations

from typing import Any

import pytest

from mqlab.arguments import build_parser, serve_configs, serve_line, throughput_configs
from mqlab.config import EngineConfig, ServerConfig, Timing
from mqlab.errors import ConfigError

Configs = tuple[EngineConfig, ServerConfig, Timing]


def serve(line: str) -> Configs:
    return serve_configs(build_parser().parse(["serve", *line.split()]))


@pytest.mark.parametrize(
    ("line", "engine", "server"),
    [
        ("m --disable-log-requests --num-scheduler-steps 8 --max-model-len 8192", {"num_scheduler_steps": 8, "max_model_len": 8192}, {}),
        ("m --disable-log-requests --max-model-len 8192", {"max_model_len": 8192}, {}),
        (
            "m --no-enable-prefix-caching --gpu-memory-utilization 0.98 --max-num-batched-tokens 8192 --disable-log-requests",
            {"enable_prefix_caching": False, "gpu_memory_utilization": 0.98, "max_num_batched_tokens": 8192},
            {},
        ),
        ("meta-llama/Meta-Llama-3-8B-Instruct", {"model": "meta-llama/Meta-Llama-3-8B-Instruct"}, {}),
        ("m --enable-chunked-prefill --disable-log-requests", {}, {}),
        ("m --disable-frontend-multiprocessing --disable-log-stats", {"log_stats_interval": 0.0}, {"topology": "aio"}),
        ("m --disable-frontend-multiprocessing --topology aio", {}, {"topology": "aio"}),
        (
            "m -tp 2 --enforce-eager --device cuda --attention-backend sdpa --quantization w8a8 --cuda-graph-sizes 1 8 --dtype float16",
            {
                "tensor_parallel_size": 2,
                "enforce_eager": True,
                "device": "cuda",
                "attention_backend": "sdpa",
                "quantization": "w8a8",
                "cuda_graph_sizes": (1, 8),
                "dtype": "float16",
            },
            {},
        ),
    ],
)
def test_the_seeds_commands_mean_what_they_meant(line: str, engine: dict[str, Any], server: dict[str, Any]) -> None:
    assert serve(line) == (EngineConfig(**{"model": "m", **engine}), ServerConfig(**server), Timing())


@pytest.mark.parametrize(
    "flags",
    [
        "--tensor-parallel-size 1 --pipeline-parallel-size=1 -tp 1",
        "--trust-remote-code --enable-auto-tool-choice --disable-uvicorn-access-log",
        "--swap-space 0 --kv-cache-dtype auto --tokenizer-mode auto",
        "--disable-overlap-schedule",
    ],
)
def test_what_is_so_anyway_may_be_asked_for(flags: str) -> None:
    assert serve(f"m {flags} --port 1") == serve("m --port 1")
    assert serve(f"{flags} m --port 1") == serve("m --port 1")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--pipeline-parallel-size 2", ["--pipeline-parallel-size=2", "--tensor-parallel-size"]),
        ("--swap-space=4", ["--swap-space=4", "computed again"]),
        ('--speculative-config {"method":"ngram"}', ["--num-speculative-tokens", "--prompt-lookup-max"]),
        ("--num-gpu-blocks-override 100", ["--num-kv-blocks"]),
        ("--quantization awq", ["none", "w8a8"]),
        ("--cudagraph-capture-sizes 1 2 4", ["--cuda-graph-sizes"]),
        ("--disable-cuda-graph", ["--enforce-eager"]),
        ("--enable-lora", ["--enable-lora", "no adapters"]),
        ("--enable-log-requests", ["never logged", "mqlab trace"]),
        ("--mem-fraction-static 0.8", ["--gpu-memory-utilization"]),
        ("--disable-radix-cache", ["--no-enable-prefix-caching"]),
        ("--model other", ["mqlab serve MODEL"]),
    ],
)
def test_what_is_not_so_is_refused_with_the_reason_or_our_name(flags: str, told: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        serve(f"m {flags}")
    assert all(word in str(refused.value).splitlines()[0] for word in (flags.split()[0].partition("=")[0], *told))


def test_without_a_model_the_flag_that_would_have_named_it_is_told() -> None:
    with pytest.raises(ConfigError, match="without a flag"):
        serve("--model m")


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--max-num-seq", "--max-num-seqs"),
        ("--max-num", "--max-num-seqs or --max-num-batched-tokens"),
        ("--enable-prefix-cacheing", "--enable-prefix-caching"),
        ("--topolgy=v1", "--topology"),
        ("--por", "--port"),
    ],
)
def test_misspelt_flags_get_a_suggestion(flag: str, meant: str) -> None:
    with pytest.raises(ConfigError) as refused:
        serve(f"m {flag}")
    first = str(refused.value).splitlines()[0]
    assert flag in first and first.endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize(
    ("line", "meant"), [("sevre m", "serve"), ("bench thruput", "throughput"), ("serve m --topology detokring", "detok-ring")]
)
def test_misspelt_names_get_a_suggestion(line: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {meant}\\?"):
        build_parser().parse(line.split())


def test_what_is_like_nothing_gets_none() -> None:
    with pytest.raises(ConfigError) as refused:
        serve("m --zebra")
    assert "did you mean" not in str(refused.value)


def test_underscores_are_dashes_in_flags_and_stay_in_values() -> None:
    engine, server, _ = serve("some_model --max_num_seqs=1k --max_num_batched_tokens 4K --tool_call_parser llama3_json")
    assert (engine.model, engine.max_num_seqs, engine.max_num_batched_tokens) == ("some_model", 1000, 4096)
    assert server.tool_call_parser == "llama3_json"


def test_a_benchmark_knows_other_engines_flags_too() -> None:
    parsed = build_parser().parse(["bench", "throughput", "--enforce-eager", "--tensor-parallel-size=1", "--num-prompts=3"])
    assert throughput_configs(parsed)[1].num_prompts == 3


def test_two_layouts_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="--disable-frontend-multiprocessing"):
        serve("m --disable-frontend-multiprocessing --topology thread")


def test_settings_written_as_a_line_are_read_as_they_were() -> None:
    engine = EngineConfig(model="m", max_num_seqs=3, enable_prefix_caching=False, gpu_memory_utilization=0.5)
    server = ServerConfig(port=9, allowed_origins=("https://a.example", "*"), enable_control=True, uds="/tmp/a b")
    configs = (engine, server, Timing(stop_grace=2.5))
    assert serve_configs(build_parser().parse(serve_line(*configs))) == configs


def test_secrets_are_in_no_line() -> None:
    line = serve_line(EngineConfig(model="m"), ServerConfig(api_key=("sk-secret",), port=9), Timing())
    assert line == ["serve", "m", "--port=9"]
