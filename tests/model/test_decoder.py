"""The decoder against transformers in float32, over every way of cutting a sequence into steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import Line, lines

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

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama no grouping": ("Llama", {"num_key_value_heads": 6}),
    "llama one kv head, odd head size": ("Llama", {"num_key_value_heads": 1, "head_dim": 22}),
    "linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e3}}),
    "llama3 rope": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral": ("Mistral", {}),
    "qwen2": ("Qwen2", {}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {}),
}


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
    def run(self, *chunks: Chunk) -> torch.Tensor:
        return self.decoder.logits(BatchTensors.of(Plan(chunks), BLOCK), self.cache).clone()


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


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant: str, make_model: Callable[..., Any], tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    model = make_model(family, **overrides)
    under = Under(tmp_path)
    short, long = sequences(21, LONG)
    wanted = expected(model, short)
    close(under.run(short.chunk(0, 20), long.chunk(0, LONG)), torch.stack([wanted[19], expected(model, long)[-1]]))
    close(under.run(short.chunk(20, 21)), wanted[20:])


@pytest.fixture
def llama(make_model: Callable[..., Any]) -> Any:
    return make_model("Llama")


CUTS = [[5, 6, 40, LONG], [16, 32, LONG], [1, 1 + LONG_CHUNK, LONG], [LONG - LONG_CHUNK, LONG], [*range(10, LONG, 10), LONG]]


@pytest.mark.parametrize("ends", CUTS, ids=str)
def test_chunked_prefill_equals_whole(ends: list[int], llama: Any, tmp_path: Path) -> None:
    under = Under(tmp_path)
    (line,) = sequences(LONG)
    rows = [under.run(line.chunk(start, end)) for start, end in zip([0, *ends], ends, strict=False)]
    close(torch.cat(rows), expected(llama, line)[[end - 1 for end in ends]])


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


@torch.inference_mode()
def test_bfloat16_stays_near_float32(llama: Any, tmp_path: Path) -> None:
    arch = read_architecture(load_config(tmp_path))
    decoder = Decoder(arch, Weights(tmp_path, torch.bfloat16), arch.max_len)
    cache = allocate(arch, POOL, BLOCK, torch.bfloat16)
    short, long = sequences(30, LONG)
    actual = decoder.logits(BatchTensors.of(Plan((short.chunk(0, 30), long.chunk(0, LONG))), BLOCK), cache)
    wanted = torch.stack([expected(llama, line)[-1] for line in (short, long)])
    assert (actual - wanted).abs().max() < 0.1 * wanted.std()
