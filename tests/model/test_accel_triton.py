"""The device decoder with the project's Triton kernels, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checksum import drain
from plans import lines
from variants import VARIANTS

from mqlab.clock import ManualClock
from mqlab.config import EngineConfig
from mqlab.engine.engine_core import EngineCore
from mqlab.model.accel.accelerator import HostAccelerator
from mqlab.model.accel.backends.registry import BACKENDS
from mqlab.model.accel.buffers import Limits, StepBuffers
from mqlab.model.accel.decoder import DeviceDecoder
from mqlab.model.accel.memory import allocate_pool
from mqlab.model.accel.products import DenseProduct
from mqlab.model.architecture import read_architecture
from mqlab.model.load import build
from mqlab.model.making import Making
from mqlab.model.weights import Weights
from mqlab.models.resolve import load_config
from mqlab.plan import Plan
from mqlab.types import Request, SamplingParams

MakeModel = Callable[..., Any]
BLOCK = 8
TOKENS = [(7 * i * i + 3) % 97 for i in range(21)]


def answers(engine: EngineConfig) -> list[tuple[int, ...]]:
    core = EngineCore(build(engine), engine, ManualClock())
    core.add(Request("0", [3, 4, 5, 6, 7], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)))
    core.add(Request("1", [8, 9], SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=2, ignore_eos=True)))
    found = drain(core).answers
    core.close()
    return [found[0, name].tokens for name in ("0", "1")]


def test_an_engine_on_the_kernels_gives_the_cpu_s_tokens(make_model: MakeModel, tmp_path: Path) -> None:
    make_model("Qwen3", num_hidden_layers=1)
    fields = {"num_kv_blocks": 9, "block_size": BLOCK, "max_model_len": 32, "max_num_seqs": 2, "max_num_batched_tokens": 8}
    engines = [
        EngineConfig(model=str(tmp_path), dtype="float32", num_threads=1, num_scheduler_steps=2, attention_backend=backend, **fields)
        for backend in ("triton", "numba")
    ]
    assert answers(engines[0]) == answers(engines[1])


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "variant",
    [
        "llama with biases",
        "mistral, window of one",
        "qwen2, yarn",
        "qwen3",
        "gemma2 untied, near caps",
        "gemma2, listed layers slide",
        "gpt-neox",
    ],
)
@torch.inference_mode()
def test_the_kernels_give_what_plain_torch_gives(variant: str, dtype: torch.dtype, make_model: MakeModel, tmp_path: Path) -> None:
    """A prompt in chunks, a decode beside a chunk, and decodes with a row of padding."""
    family, overrides = VARIANTS[variant]
    make_model(
        family,
        **{**overrides, "num_hidden_layers": 2, **({"layer_types": overrides["layer_types"][:2]} if "layer_types" in overrides else {})},
    )
    exact, found = states(tmp_path, "torch", torch.float32), states(tmp_path, "triton", dtype)
    if dtype == torch.float32:
        assert max(errors(found, exact)) < 1e-5
    else:  # both round, at places of their own
        rounded = errors(states(tmp_path, "torch", dtype), exact)
        assert all(error < 2 * usual for error, usual in zip(errors(found, exact), rounded, strict=True))


def errors(found: list[torch.Tensor], exact: list[torch.Tensor]) -> list[float]:
    """Of each step, the largest, as a share of the largest number."""
    return [float((one - other).float().abs().max() / other.abs().max()) for one, other in zip(found, exact, strict=True)]


def states(folder: Path, backend: str, dtype: torch.dtype) -> list[torch.Tensor]:
    arch = read_architecture(load_config(folder))
    decoder = DeviceDecoder(arch, Weights(folder, dtype), arch.max_len, BACKENDS[backend](), Making(DenseProduct))
    cache = allocate_pool(arch, 9, BLOCK, dtype, torch.device("cpu"))
    buffers = StepBuffers(HostAccelerator(), Limits(32, 4, 6, BLOCK))
    first, second = lines([TOKENS, TOKENS[5:16]], [3, 8, 1, 0, 6, 2], BLOCK)
    plans = [
        Plan((first.chunk(0, 19, samples=False, block_size=BLOCK),)),
        Plan((first.chunk(19, 20, block_size=BLOCK), second.chunk(0, 9, samples=False, block_size=BLOCK))),
    ]
    found = [decoder.states(buffers.load(plan), cache).clone() for plan in plans]
    decodes = Plan((first.chunk(20, 21, block_size=BLOCK), second.chunk(9, 10, block_size=BLOCK)))
    return [*found, decoder.states(buffers.load(decodes, 3), cache)[:2].clone()]
