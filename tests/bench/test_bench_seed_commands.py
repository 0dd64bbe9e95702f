"""The command lines with which the designs that mqlab reproduces were measured (vLLM PRs 7394, 8157 and 11816, Aphrodite's MQ engine): each
runs after replacing program, model and dataset, with smaller counts and a free port.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from string import Template
from typing import Any

import pytest
from serving import mqlab_command, running

from mqlab import cli
from mqlab.arguments import build_parser, load_configs, serve_configs, throughput_configs
from mqlab.config import EngineConfig, ServerConfig
from mqlab.errors import ConfigError
from mqlab.notes import notes_of

THROUGHPUT = (
    "python3 benchmarks/benchmark_throughput.py --model $MODEL --dataset benchmarks/ShareGPT_V3_unfiltered_cleaned_split.json"
    " --num-scheduler-steps 8",
    "python3 benchmarks/benchmark_throughput.py --model $MODEL --dataset benchmarks/ShareGPT_V3_unfiltered_cleaned_split.json",
    "python tests/benchmarks/engine/throughput.py --model EleutherAI/pythia-70m-deduped --num-prompts 2000 --max-model-len 512"
    " --input-len 128 --output-len 128",
    "python tests/benchmarks/engine/throughput.py --model EleutherAI/pythia-70m-deduped --num-prompts 2000 --max-model-len 512"
    " --input-len 128 --output-len 128 --async-engine",
    "python3 benchmarks/benchmark_throughput.py --model $MODEL --input-len 230 --output-len 200 --no-enable-prefix-caching"
    " --gpu-memory-utilization 0.98 --max-num-batched-tokens 8192 --async-engine",
)

SHAREGPT_LOAD = (
    "python3 benchmarks/benchmark_serving.py --model $MODEL --dataset-path benchmarks/ShareGPT_V3_unfiltered_cleaned_split.json "
)
SONNET_LOAD = """python3 benchmarks/benchmark_serving.py \\
        --model $MODEL \\
        --dataset-name sonnet --sonnet-input-len 550 --sonnet-output-len 150 --dataset-path benchmarks/sonnet.txt \\
        --num-prompts $NUM_PROMPTS --request-rate $QPS --port $PORT"""
CHUNKED = "vllm serve meta-llama/Meta-Llama-3-8B-Instruct --enable-chunked-prefill --disable-log-requests"

SERVING = (
    ("vllm serve $MODEL --disable-log-requests --num-scheduler-steps 8 --max-model-len 8192", SHAREGPT_LOAD),
    ("vllm serve $MODEL --disable-log-requests --max-model-len 8192", SHAREGPT_LOAD),
    (
        "vllm serve $MODEL --no-enable-prefix-caching --gpu-memory-utilization 0.98 --max-num-batched-tokens 8192 --disable-log-requests",
        "python3 benchmark_serving.py --model $MODEL --dataset-name sonnet --dataset-path sonnet.txt --sonnet-input-len 250"
        " --sonnet-output-len 200",
    ),
    (
        "vllm serve meta-llama/Meta-Llama-3-8B-Instruct",
        "python benchmarks/benchmark_serving.py --model meta-llama/Meta-Llama-3-8B-Instruct --dataset-name sonnet --sonnet-input-len 1024"
        " --sonnet-output-len 128 --dataset-path benchmarks/sonnet.txt --port 8000 --num-prompts 10000 --request-rate 1000",
    ),
    (CHUNKED, SONNET_LOAD),
    (f"{CHUNKED} --disable-frontend-multiprocessing", SONNET_LOAD),
)

PROGRAMS = {
    "benchmarks/benchmark_throughput.py": ["bench", "throughput"],
    "tests/benchmarks/engine/throughput.py": ["bench", "throughput"],
    "benchmarks/benchmark_serving.py": ["bench", "serve"],
    "benchmark_serving.py": ["bench", "serve"],
}
MODELS = ("meta-llama/Meta-Llama-3-8B-Instruct", "EleutherAI/pythia-70m-deduped")
VARIABLES = {"MODEL": MODELS[0], "QPS": "10", "NUM_PROMPTS": "1200", "PORT": "8000"}

POEM = "\n".join(f"Line {i} of the poem, which goes on for a while." for i in range(40))
TURNS = [{"from": "human", "value": "What is the capital of France?"}, {"from": "gpt", "value": "The capital of France is Paris."}]


@pytest.fixture
def datasets(tmp_path: Path) -> dict[str, str]:
    """Small files of the right formats, by the names that the lines use."""
    chat, poem = tmp_path / "chat.json", tmp_path / "poem.txt"
    chat.write_text(json.dumps([{"id": str(i), "conversations": TURNS} for i in range(4)]))
    poem.write_text(POEM)
    return {
        "benchmarks/ShareGPT_V3_unfiltered_cleaned_split.json": str(chat),
        "benchmarks/sonnet.txt": str(poem),
        "sonnet.txt": str(poem),
    }


def translated(line: str, model: str, datasets: dict[str, str]) -> list[str]:
    """Our arguments for a line: program, model and dataset replaced, nothing else."""
    program, *words = shlex.split(Template(line.replace("\\\n", " ")).substitute(VARIABLES))
    command = [] if program == "vllm" else PROGRAMS[words.pop(0)]
    return command + [model if word in MODELS else datasets.get(word, word) for word in words]


def read(argv: list[str]) -> tuple[Any, ...]:
    namespace = build_parser().parse(argv)
    if namespace.command == "serve":
        return serve_configs(namespace)
    return throughput_configs(namespace) if namespace.bench == "throughput" else load_configs(namespace)


@pytest.mark.parametrize("line", [*THROUGHPUT, *(line for pair in SERVING for line in pair)])
def test_every_line_is_understood(line: str, datasets: dict[str, str]) -> None:
    assert read(translated(line, "smollm2-135m", datasets))


def test_what_the_lines_say_is_what_is_meant(datasets: dict[str, str]) -> None:
    engine, workload, dataset, _ = read(translated(THROUGHPUT[4], "m", datasets))
    assert (workload.layout, dataset.input_len, dataset.output_len, engine.max_num_batched_tokens) == ("aio", 230, 200, 8192)
    load, dataset = read(translated(SERVING[3][1], "m", datasets))
    assert (load.port, load.num_prompts, load.request_rate) == (8000, 10000, 1000)
    assert (dataset.dataset_name, dataset.input_len, dataset.output_len) == ("sonnet", 1024, 128)
    assert read(translated(SERVING[5][0], "m", datasets))[1].topology == "aio"


@pytest.mark.parametrize("line", THROUGHPUT)
def test_throughput_lines_run(line: str, datasets: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*translated(line, "echo", datasets), "--num-prompts", "4"]) == 0
    shown = capsys.readouterr()
    assert "Throughput: " in shown.out
    assert "4 requests" in shown.out
    assert shown.err.count("does nothing without a model") == ("--gpu-memory-utilization" in line)


@pytest.mark.full
@pytest.mark.parametrize("line", THROUGHPUT)
def test_throughput_lines_run_on_a_model(line: str, datasets: dict[str, str], tmp_path: Path) -> None:
    argv = [*translated(line, "smollm2-135m", datasets), "--num-prompts", "2", "--output-len", "4"]
    with running(mqlab_command(*argv), tmp_path) as process:
        assert process.popen.wait(60) == 0, process.text()
        assert "Throughput: " in process.text()


def serve_and_load(server_line: str, load_line: str, datasets: dict[str, str], folder: Path) -> None:
    """Start the server with its line, load it with the other, stop it."""
    server_argv = [*translated(server_line, "smollm2-135m", datasets), "--port", "0"]
    with running(mqlab_command(*server_argv), folder) as server:
        port = server.wait_ready().url.rpartition(":")[2]
        # The last of two equal options counts, so appending replaces.
        counts = ["--num-prompts", "3", "--output-len", "3", "--port", port, "--save-result", "--result-filename", "result.json"]
        argv = [*translated(load_line, "smollm2-135m", datasets), *counts, "--result-dir", str(folder)]
        with running(mqlab_command(*argv), folder) as load:
            # 3: the run is void, as on a machine that is too busy to send at these rates.
            assert load.popen.wait(60) in (0, 3), load.text()
        assert server.stop(20) == 0
        assert server.text().count("sizes nothing on a CPU") == ("--gpu-memory-utilization" in server_line)
    result = json.loads((folder / "result.json").read_text())
    assert result["completed"] == 3
    assert 3 <= result["total_output_tokens"] <= 9, "text may end earlier"


def test_serving_lines_run(datasets: dict[str, str], tmp_path: Path) -> None:
    serve_and_load(*SERVING[0], datasets, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("pair", SERVING[1:])
def test_all_serving_lines_run(pair: tuple[str, str], datasets: dict[str, str], tmp_path: Path) -> None:
    serve_and_load(*pair, datasets, tmp_path)


# --- what other engines let one choose


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EngineConfig(enable_chunked_prefill=False), "--enable-chunked-prefill=False is not possible: this scheduler"),
        (lambda: EngineConfig(num_scheduler_steps=0), "--num-scheduler-steps=0 must be at least 1"),
        (lambda: EngineConfig(gpu_memory_utilization=0.0), r"--gpu-memory-utilization=0.0 must be in \(0, 1\]"),
        (lambda: EngineConfig(gpu_memory_utilization=1.1), r"must be in \(0, 1\]"),
        (lambda: ServerConfig(disable_log_requests=False), "--disable-log-requests=False is not possible: requests are never logged"),
    ],
)
def test_what_cannot_be_had_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_what_is_taken_and_not_done_is_told() -> None:
    (note,) = notes_of(EngineConfig(num_scheduler_steps=8, gpu_memory_utilization=0.98))
    assert note.startswith("--gpu-memory-utilization 0.98 sizes nothing on a CPU")
    assert notes_of(EngineConfig()) == ()
