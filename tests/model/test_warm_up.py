"""An engine that is ready has compiled all that its requests will need: none of them waits for a compiler, nor all others with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from small_model import write_small_model

SCRIPT = """
import pkgutil
import sys
from importlib import import_module

import mqlab_kernels
from numba.core.dispatcher import Dispatcher

from mqlab import LLM, SamplingParams
from mqlab.params import StructuredOutputs


def compiled():
    modules = [import_module(f"mqlab_kernels.{module.name}") for module in pkgutil.iter_modules(mqlab_kernels.__path__)]
    kernels = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}
    return {kernel.py_func.__name__: tuple(map(str, kernel.signatures)) for kernel in kernels.values()}


mode, model, dtype = sys.argv[1:]
options = {"num_threads": 1, "num_kv_blocks": 64, "dtype": dtype, "logprobs_mode": mode, "num_speculative_tokens": 2}
with LLM(model, **options) as llm:
    ready = compiled()
    asked = [
        {"temperature": 0},
        {},
        {"top_k": 5},
        {"top_p": 0.5},
        {"min_p": 0.1},
        {"logprobs": 3, "prompt_logprobs": 3},
        {"frequency_penalty": 1.0, "repetition_penalty": 1.1},
        {"logit_bias": {5: 1.0}, "min_tokens": 2},
        {"allowed_token_ids": (5, 6), "logprobs": 0},
        {"structured_outputs": StructuredOutputs(json_object=True)},
        {"temperature": 0, "presence_penalty": 1.0, "logprobs": 2, "bad_words": ("the",)},
    ]
    params = [SamplingParams(max_tokens=4, **one) for one in asked]
    for one in params:
        llm.generate("The sun", one, use_tqdm=False)
    llm.generate(["The sun is " * 9] * len(params), params, use_tqdm=False)
    llm.embed(["The sun"], use_tqdm=False)
    late = {name: kinds for name, kinds in compiled().items() if kinds != ready[name]}
    assert len(ready) > 6 and not late, late
"""


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("processed_logprobs", "float32"), pytest.param("raw_logprobs", "bfloat16", marks=pytest.mark.full)],
)
def test_no_request_makes_a_kernel_compile(mode: str, dtype: str, tmp_path: Path, model_folder: Path) -> None:
    folder = write_small_model(tmp_path / "small", model_folder)
    done = subprocess.run([sys.executable, "-c", SCRIPT, mode, str(folder), dtype], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
