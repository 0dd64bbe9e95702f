"""The device decoder against transformers in float32, with the kernels that need no GPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import Line, lines
from variants import VARIANTS

from mqlab.model.accel.accelerator import HostAccelerator
from mqlab.model.accel.backends.registry import BACKENDS
from mqlab.model.accel.buffers import Limits, StepBuffers
from mqlab.model.accel.decoder import DeviceDecoder
from mqlab.model.accel.memory import allocate_pool
from mqlab.model.accel.products import DenseProduct
from mqlab.model.architecture import read_architecture
from mqlab.model.making import Making
from mqlab.model.weights import Weights
from mqlab.models.resolve import load_config
from mqlab.plan import Chunk, Plan

BLOCK = 16
POOL = 16
LONG = 61
CUTS = [[LONG], [5, 6, 40, LONG], [16, 32, LONG - 1, LONG], [*range(1, 8), LONG]]
FEW = ["llama with biases", "mistral, window", "qwen3", "gemma2 untied, near caps", "gpt-neox", "gpt-neox, one after the other"]


class Under:
    """A device decoder on this CPU, over a pool in which whatever was never written is no number."""

    def __init__(self, folder: Path, backend: str, dtype: torch.dtype = torch.float32) -> None:
        arch = read_architecture(load_config(folder))
        self.buffers = StepBuffers(HostAccelerator(), Limits(256, 8, POOL, BLOCK))
        with torch.inference_mode():
            self.decoder = DeviceDecoder(arch, Weights(folder, dtype), arch.max_len, BACKENDS[backend](), Making(DenseProduct))
            self.cache = allocate_pool(arch, POOL, BLOCK, dtype, torch.device("cpu"))
            for pool in self.cache:
                pool.keys.fill_(torch.nan)
                pool.values.fill_(torch.nan)

    @torch.inference_mode()
    def states(self, *chunks: Chunk) -> torch.Tensor:
        return self.decoder.states(self.buffers.load(Plan(chunks)), self.cache)

    @torch.inference_mode()
    def logits(self, *chunks: Chunk) -> torch.Tensor:
        """Of the rows that are drawn from."""
        batch = self.buffers.load(Plan(chunks))
        states = self.decoder.states(batch, self.cache)
        return self.decoder.logits(states if batch.logit_rows is None else states[batch.logit_rows])


def sequences(*lengths: int) -> list[Line]:
    """Random tokens; blocks in shuffled order."""
    rng = random.Random(0)
    return lines([[rng.randrange(97) for _ in range(length)] for length in lengths], rng.sample(range(POOL), POOL), BLOCK)


def close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(actual, wanted, atol=1e-4, rtol=0)


@torch.inference_mode()
def every_cut(folder: Path, model: Any, backend: str, cuts: list[list[int]]) -> None:
    (line,) = sequences(LONG)
    tokens = torch.tensor([line.tokens])
    wanted, logits = model.base_model(tokens).last_hidden_state[0], model(tokens).logits[0]
    for ends in cuts:
        under = Under(folder, backend)
        states = torch.cat([under.states(line.chunk(start, end)) for start, end in zip([0, *ends], ends, strict=False)])
        close(states, wanted)
        close(under.decoder.logits(states), logits)


@pytest.mark.parametrize("backend", ["torch", "sdpa"])
@pytest.mark.parametrize("variant", FEW)
def test_every_position_equals_transformers(variant: str, backend: str, make_model: Callable[..., Any], tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    every_cut(tmp_path, make_model(family, **overrides), backend, CUTS[1:3])


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch", "sdpa"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_position_of_every_family_equals_transformers(
    variant: str, backend: str, make_model: Callable[..., Any], tmp_path: Path
) -> None:
    family, overrides = VARIANTS[variant]
    every_cut(tmp_path, make_model(family, **overrides), backend, CUTS)


@pytest.mark.parametrize("variant", ["llama", "gemma2 untied, near caps"])
@torch.inference_mode()
def test_a_mixed_plan_gives_each_sequence_its_own_logits(variant: str, make_model: Callable[..., Any], tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    model = make_model(family, **overrides)
    decoding, decoding_too, long, fresh, halfway = sequences(30, 17, LONG, 3, LONG)
    under = Under(tmp_path, "torch")
    under.states(decoding.chunk(0, 29), decoding_too.chunk(0, 16), halfway.chunk(0, 40, samples=False))
    actual = under.logits(
        decoding.chunk(29, 30), decoding_too.chunk(16, 17), long.chunk(0, LONG), fresh.chunk(0, 2, samples=False), halfway.chunk(40, LONG)
    )
    wanted = [model(torch.tensor([line.tokens])).logits[0, -1] for line in (decoding, decoding_too, long, halfway)]
    close(actual, torch.stack(wanted))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision_is_near(dtype: torch.dtype, make_model: Callable[..., Any], tmp_path: Path) -> None:
    model = make_model("Qwen3")
    (line,) = sequences(LONG)
    wanted = model(torch.tensor([line.tokens])).logits[0]
    under = Under(tmp_path, "torch", dtype)
    actual = under.decoder.logits(under.states(line.chunk(0, LONG)))
    theirs = model.to(dtype)(torch.tensor([line.tokens])).logits[0]
    assert actual.dtype == torch.float32
    assert (actual - wanted).std() < 1.2 * (theirs - wanted).std()
