"""A model whose linear layers compute in 8-bit integers, against the same in its own type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mqlab.clock import ManualClock
from mqlab.config import EngineConfig
from mqlab.engine.engine_core import EngineCore
from mqlab.model.load import build
from mqlab.types import Request, SamplingParams, Step

PROMPT = [5, 9, 40, 41, 3, 77, 12, 60, 8, 9, 40, 33, 2, 71, 18, 90, 6, 44, 25, 30, 1, 96, 50, 51, 52, 7]


def logprobs_of_prompt(folder: Path, **fields: Any) -> torch.Tensor:
    """Of each of the prompt's tokens but the first."""
    defaults = {"num_kv_blocks": 10, "num_threads": 1, "max_num_seqs": 2, "max_num_batched_tokens": 16}
    config = EngineConfig(model=str(folder), **{**defaults, **fields})
    core = EngineCore(build(config), config, ManualClock())
    core.add(Request("a", PROMPT, SamplingParams(max_tokens=1, prompt_logprobs=0)))
    found = None
    while core.has_work:
        for event in core.finish(core.begin().wait()):
            assert isinstance(event, Step)
            found = found or event.deltas[0].prompt_logprobs
    core.close()
    assert found is not None
    return torch.tensor([row[0][1] for row in found.rows()])


@pytest.mark.parametrize(
    ("family", "fields"),
    [("Llama", {}), ("Qwen2", {}), ("Llama", {"dtype": "bfloat16"})],
    ids=["llama", "qwen2, biases", "llama, bfloat16"],
)
def test_logprobs_stay_close(family: str, fields: dict[str, Any], make_model: Callable[..., Any], tmp_path: Path) -> None:
    make_model(family)
    dense = logprobs_of_prompt(tmp_path, attention_backend="torch", **fields)
    quantised = logprobs_of_prompt(tmp_path, attention_backend="torch", quantization="w8a8", **fields)
    off = (quantised - dense).abs() / dense.std()
    assert 0 < off.mean() < 0.1
    assert off.max() < 0.4


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_kernels_say_what_torch_says(make_model: Callable[..., Any], tmp_path: Path) -> None:
    make_model("Llama")
    by_torch, by_kernels = (logprobs_of_prompt(tmp_path, attention_backend=name, quantization="w8a8") for name in ("torch", "triton"))
    assert (by_kernels - by_torch).abs().mean() < 0.02 * by_torch.std()
