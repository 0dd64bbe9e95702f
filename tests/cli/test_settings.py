"""What is said of a setting of the wrong kind, and of one that will not be heeded, whoever sets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mqlab.config import EngineConfig
from mqlab.errors import ConfigError
from mqlab.notes import notes_of


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"device": "cuda:0"}, "--device='cuda:0' is unknown; it is one of auto, cpu, cuda"),
        ({"attention_backend": "flash"}, "--attention-backend='flash' is unknown; it is one of auto, triton, sdpa, torch, numba"),
        ({"quantization": None}, "--quantization=None is unknown; it is one of none, w8a8"),
        ({"cuda_graph_sizes": 8}, "--cuda-graph-sizes=8 is not valid: it must be a tuple of whole numbers"),
        ({"cuda_graph_sizes": ("all",)}, "--cuda-graph-sizes=('all',) is not valid: it must be a tuple of whole numbers"),
        ({"kv_cache_gb": "4"}, "--kv-cache-gb='4' is not valid: it must be a number or None"),
        ({"kv_cache_gb": 4e9}, "--kv-cache-gb=4000000000.0 must be above 0 and below 1048576: it is in GiB, 4 is 4 GiB"),
        ({"gpu_memory_utilization": 90}, "--gpu-memory-utilization=90 must be in (0, 1]: 0.9 is 90 %"),
        ({"tensor_parallel_size": 2.0}, "--tensor-parallel-size=2.0 is not valid: it must be a whole number"),
        ({"enforce_eager": "yes"}, "--enforce-eager='yes' is not valid: it must be True or False"),
        ({"model": None}, "--model=None is not valid: it must be a string"),
    ],
)
def test_what_is_of_the_wrong_kind_is_told_what_it_must_be(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        EngineConfig(**fields)
    assert str(refused.value) == words


GPU: dict[str, Any] = {"device": "cuda", "max_num_seqs": 64}
CPU: dict[str, Any] = {"device": "cpu", "max_num_seqs": 64}


@pytest.mark.parametrize(
    ("fields", "notes"),
    [
        (GPU | {"cuda_graph_sizes": (4, 64)}, []),
        (
            GPU | {"cuda_graph_sizes": (4, 2, 100)},
            ["100 is left out: a step has at most --max-num-seqs 64 sequences", "decode steps of 5 to 64 sequences run without a graph"],
        ),
        (GPU | {"cuda_graph_sizes": (63,)}, ["decode steps of 64 sequences run without a graph"]),
        (GPU | {"cuda_graph_sizes": (64, 99)}, ["--cuda-graph-sizes 99 is left out"]),
        (
            GPU | {"cuda_graph_sizes": (8,), "torch_compile": True, "enforce_eager": True},
            ["--cuda-graph-sizes does nothing with --enforce-eager", "--torch-compile does nothing with --enforce-eager"],
        ),
        (CPU | {"cuda_graph_sizes": (8,), "attention_backend": "torch"}, ["--cuda-graph-sizes does nothing on a CPU"]),
        (CPU | {"cuda_graph_sizes": (8,), "attention_backend": "torch", "torch_compile": True}, ["steps of 9 to 64 sequences run without"]),
        ({"model": "sim:llama-3.2-1b@h100", "quantization": "w8a8"}, ["--quantization does nothing for a simulated device"]),
        ({"model": "echo", "device": "cuda", "enforce_eager": True}, ["--device does nothing without a model", "--enforce-eager does"]),
        (
            {"model": "echo", "kv_cache_gb": 2.0, "gpu_memory_utilization": 0.5, "num_kv_blocks": 9},
            [f"--{one} does nothing without a model: --num-kv-blocks does" for one in ("kv-cache-gb 2", "gpu-memory-utilization 0.5")],
        ),
        ({"model": "echo", "gpu_memory_utilization": 0.5}, ["--gpu-memory-utilization 0.5 does nothing without a model"]),
        ({"model": "echo", "num_kv_blocks": 9}, []),
        ({"model": "sim:llama-3.2-1b@h100", "gpu_memory_utilization": 0.5}, []),
        ({"model": "sim:llama-3.2-1b@h100", "kv_cache_gb": 2.0}, ["--kv-cache-gb 2 does nothing for a simulated device: --num-kv-blocks"]),
        (
            {"model": "sim:llama-3.2-1b@h100", "gpu_memory_utilization": 0.5, "num_kv_blocks": 9},
            ["--gpu-memory-utilization 0.5 sizes nothing: --num-kv-blocks 9 does"],
        ),
        (CPU | {"torch_compile": True}, ["--torch-compile does nothing on a CPU"]),
        (GPU | {"gpu_memory_utilization": 0.5}, []),
        (GPU | {"gpu_memory_utilization": 0.5, "kv_cache_gb": 2.0}, ["--gpu-memory-utilization 0.5 sizes nothing: --kv-cache-gb 2 does"]),
        (CPU | {"kv_cache_gb": 2.0, "num_kv_blocks": 1234567}, ["--kv-cache-gb 2 sizes nothing: --num-kv-blocks 1234567 does"]),
    ],
)
def test_what_is_asked_for_and_will_not_be_done_is_noted(fields: dict[str, Any], notes: list[str]) -> None:
    found = notes_of(EngineConfig(**fields))
    assert len(found) == len(notes) and all(words in note for words, note in zip(notes, found, strict=True))


def test_a_refusal_of_the_engine_s_own_process_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mqlab", "serve", "sim:llama-3.2-1b@h100", "--tensor-parallel-size", "2", "--port", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "mqlab: --tensor-parallel-size=2 is not possible for a simulated device, which is one; pass 1\n"
