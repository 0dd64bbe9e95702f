"""Made-up weights: the same everywhere, cheap, and never a number that breaks a model."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checksum import drain
from plans import lines
from transformers import AutoConfig, AutoModelForCausalLM

from mqlab.clock import ManualClock
from mqlab.config import EngineConfig
from mqlab.engine.engine_core import EngineCore
from mqlab.model.architecture import Architecture, read_architecture
from mqlab.model.batch import BatchTensors
from mqlab.model.decoder import Decoder
from mqlab.model.dummy import DummyWeights
from mqlab.model.kv import allocate
from mqlab.model.load import build
from mqlab.models.shipped import SHIPPED, shipped_config
from mqlab.plan import Plan
from mqlab.types import Request, SamplingParams

PARAMETERS = {"pythia-70m": 70_426_624, "llama-3.2-1b": 1_235_814_400, "llama-3.1-8b": 8_030_261_248}
"""As published with the weights."""


def tensor(seed: int = 0) -> torch.Tensor:
    return DummyWeights(torch.float32, seed).read("model.layers.0.mlp.up_proj.weight", 1100, 1000)


def test_numbers_depend_on_name_and_seed_alone() -> None:
    weights = DummyWeights(torch.float32)
    assert torch.equal(tensor(), tensor())
    assert not torch.equal(tensor(), tensor(seed=1))
    assert not torch.equal(weights.read("a", 4, 4), weights.read("b", 4, 4))
    assert torch.equal(weights.read("a", 4, 4), weights.read("a", 2, 8).view(4, 4))


def test_another_process_makes_the_same() -> None:
    script = """
import torch
from mqlab.model.dummy import DummyWeights
print(DummyWeights(torch.float32).read("model.layers.0.mlp.up_proj.weight", 1100, 1000).view(torch.int32).sum().item())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == tensor().view(torch.int32).sum().item()


def test_numbers_are_small_and_all_different_rows() -> None:
    made = tensor()
    assert made.abs().max() < 0.2
    assert abs(float(made.std()) - 0.02) < 0.001 and abs(float(made.mean())) < 0.001
    assert len({tuple(row[:8].tolist()) for row in made}) == len(made)


def test_norms_are_neutral() -> None:
    weights = DummyWeights(torch.bfloat16)
    norm = weights.read("model.norm.weight", 7)
    assert norm.dtype == torch.bfloat16
    assert norm.tolist() == [1.0] * 7
    assert weights.read("q_proj.bias", 7).abs().max() < 0.2


def test_they_are_put_together_where_they_are_wanted() -> None:
    away = DummyWeights(torch.bfloat16, device=torch.device("meta"))
    for name, shape in (("model.norm.weight", (7,)), ("model.layers.0.mlp.up_proj.weight", (1100, 1000))):
        made = away.read(name, *shape)
        assert (made.device.type, made.dtype, made.shape) == ("meta", torch.bfloat16, shape)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_shapes_are_the_published_ones(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(shipped_config(name))
    config = AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    arch = read_architecture(json.loads(shipped_config(name)))
    assert arch.max_len == config.max_position_embeddings
    assert type(model).__name__ == arch.name


@torch.inference_mode()
def logits(arch: Architecture) -> torch.Tensor:
    decoder = Decoder(arch, DummyWeights(torch.float32), 64)
    rng = random.Random(0)
    sequences = lines([[rng.randrange(arch.vocab) for _ in range(length)] for length in (20, 1)], range(4))
    batch = BatchTensors.of(Plan(tuple(line.chunk(0, len(line.tokens)) for line in sequences)), 16)
    return decoder.logits(decoder.states(batch, allocate(arch, 4, 16, torch.float32))[batch.logit_rows])


SMALL = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}


@pytest.mark.parametrize(("name", "fields"), [("pythia-70m", {}), ("llama-3.2-1b", SMALL), ("llama-3.1-8b", {**SMALL, "head_dim": 32})])
def test_a_shipped_shape_runs(name: str, fields: dict[str, int]) -> None:
    arch = read_architecture({**json.loads(shipped_config(name)), **fields})
    first = logits(arch)
    assert first.isfinite().all()
    assert first.std() > 0.01
    assert torch.equal(first, logits(arch))


def generated(model: str, **fields: Any) -> tuple[int, ...]:
    """Eight tokens of an engine that makes its weights up."""
    config = EngineConfig(model=model, load_format="dummy", num_kv_blocks=8, num_threads=1, **fields)
    core = EngineCore(build(config), config, ManualClock())
    core.add(Request("one", [5, 6, 7], SamplingParams(temperature=1, seed=3, max_tokens=8, ignore_eos=True)))
    answers = drain(core).answers
    core.close()
    return answers[0, "one"].tokens


@pytest.mark.parametrize(("model_type", "name"), [("llama", "LlamaForCausalLM"), ("opt", "OPTForCausalLM")])
def test_an_engine_needs_a_config_and_no_weights(model_type: str, name: str, tmp_path: Path) -> None:
    """By the decoder here, and by transformers."""
    fields = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300}
    AutoConfig.for_model(model_type, architectures=[name], **fields).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    first = generated(str(tmp_path))
    assert len(first) == 8
    assert first == generated(str(tmp_path))


def test_an_engine_runs_a_shipped_shape() -> None:
    assert len(generated("pythia-70m", max_model_len=128)) == 8
