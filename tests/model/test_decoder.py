"""The decoder against transformers in float32, over every way of cutting a sequence into steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from plans import Line, lines
from variants import VARIANTS

from mqlab.model.architecture import read_architecture
from mqlab.model.attention import LONG_CHUNK
from mqlab.model.batch import BatchTensors
from mqlab.model.decoder import Decoder
from mqlab.model.kv import allocate
from mqlab.model.weights import Weights
from mqlab.models.resolve import load_config
from mqlab.plan import Chunk, Plan

BLOCK = 16
POOL = 64
LONG = 2 * LONG_CHUNK + 11


class Under:
    """A decoder with a fresh pool, run plan by plan."""

    def __init__(self, folder: Path) -> None:
        arch = read_architecture(load_config(folder))
        with torch.inference_mode():
            self.decoder = Decoder(arch, Weights(folder, torch.float32), arch.max_len)
            self.cache = allocate(arch, POOL, BLOCK, torch.float32)
            for layer in self.cache:
                layer.keys.fill_(torch.nan)  # so that reading what was never written shows
                layer.values.fill_(torch.nan)

    @torch.inference_mode()
    def states(self, *chunks: Chunk) -> torch.Tensor:
        return self.decoder.states(BatchTensors.of(Plan(chunks), BLOCK), self.cache).clone()

    @torch.inference_mode()
    def run(self, *chunks: Chunk) -> torch.Tensor:
        """Logits of the rows that are sampled."""
        return self.decoder.logits(self.states(*chunks)[BatchTensors.of(Plan(chunks), BLOCK).logit_rows])


def sequences(*lengths: int) -> list[Line]:
    """Random tokens; blocks in shuffled order."""
    rng = random.Random(0)
    pool = rng.sample(range(POOL), POOL)
    return lines([[rng.randrange(97) for _ in range(length)] for length in lengths], pool, BLOCK)


@torch.inference_mode()
def expected(model: Any, line: Line) -> torch.Tensor:
    """Logits at every position."""
    return model(torch.tensor([line.tokens])).logits[0]


def close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(actual, wanted, atol=1e-4, rtol=0)


CUTS = [[LONG], [5, 6, 40, LONG], [16, 32, LONG], [1, 1 + LONG_CHUNK, LONG], [LONG - LONG_CHUNK, LONG], [*range(10, LONG, 10), LONG]]


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_every_position_of_every_cut_equals_transformers(variant: str, make_model: Callable[..., Any], tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    model = make_model(family, **overrides)
    (line,) = sequences(LONG)
    wanted = model.base_model(torch.tensor([line.tokens])).last_hidden_state[0]
    for ends in CUTS:
        under = Under(tmp_path)
        states = torch.cat([under.states(line.chunk(start, end)) for start, end in zip([0, *ends], ends, strict=False)])
        close(states, wanted)
        close(under.decoder.logits(states), expected(model, line))


@pytest.fixture
def llama(make_model: Callable[..., Any]) -> Any:
    return make_model("Llama")


def test_a_mixed_plan_gives_each_sequence_its_own_logits(llama: Any, tmp_path: Path) -> None:
    under = Under(tmp_path)
    many = sequences(30, 17, LONG, 3, LONG)
    decoding, decoding_too, long, fresh, halfway = many
    under.run(decoding.chunk(0, 29), decoding_too.chunk(0, 16), halfway.chunk(0, 40, samples=False))
    actual = under.run(
        decoding.chunk(29, 30), decoding_too.chunk(16, 17), long.chunk(0, LONG), fresh.chunk(0, 2, samples=False), halfway.chunk(40, LONG)
    )
    close(actual, torch.stack([expected(llama, line)[-1] for line in (decoding, decoding_too, long, halfway)]))
    close(under.run(fresh.chunk(2, 3)), expected(llama, fresh)[-1:])


def test_a_recomputed_sequence_may_use_other_blocks(llama: Any, tmp_path: Path) -> None:
    under = Under(tmp_path)
    (line,) = sequences(40)
    under.run(line.chunk(0, 39))
    elsewhere = Line(line.tokens, tuple(block for block in range(POOL) if block not in line.blocks)[: len(line.blocks)])
    under.run(elsewhere.chunk(0, 39))
    close(under.run(elsewhere.chunk(39, 40)), expected(llama, line)[-1:])


def test_a_plan_that_samples_nothing_yields_no_logits(llama: Any, tmp_path: Path) -> None:
    (line,) = sequences(10)
    assert Under(tmp_path).run(line.chunk(0, 5, samples=False)).shape == (0, llama.config.vocab_size)


@pytest.mark.parametrize("variant", ["llama", "mistral, window", "qwen3", "gemma2 untied, near caps", "gpt-neox"])
@torch.inference_mode()
def test_bfloat16_is_as_near_to_float32_as_in_transformers(variant: str, make_model: Callable[..., Any], tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    model = make_model(family, **overrides)
    arch = read_architecture(load_config(tmp_path))
    decoder = Decoder(arch, Weights(tmp_path, torch.bfloat16), arch.max_len)
    cache = allocate(arch, POOL, BLOCK, torch.bfloat16)
    short, long = sequences(30, LONG)
    batch = BatchTensors.of(Plan((short.chunk(0, 30), long.chunk(0, LONG))), BLOCK)
    actual = decoder.logits(decoder.states(batch, cache)[batch.logit_rows])
    wanted = torch.stack([expected(model, line)[-1] for line in (short, long)])
    rounded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    theirs = torch.stack([expected(rounded, line)[-1] for line in (short, long)])
    assert (actual - wanted).std() < 1.2 * (theirs - wanted).std()
