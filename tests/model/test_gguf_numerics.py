"""Case C71: a transformers model, written as llama.cpp writes it and converted back, computes the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType
from hf_gguf import write_hf_gguf

from mqlab.model.architecture import read_architecture
from mqlab.models.gguf import convert
from mqlab.models.resolve import load_config
from mqlab.text.tokenizer import Tokenizer

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {"num_key_value_heads": 2, "rms_norm_eps": 1e-6}
GEMMA2 = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8, "tie_word_embeddings": True}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "grouped": ("llama", "Llama", GROUPED),
    "three to one": ("llama", "Llama", GROUPED | {"hidden_size": 96, "num_attention_heads": 6}),
    "tied": ("llama", "Llama", GROUPED | {"tie_word_embeddings": True}),
    "attention biases": ("llama", "Llama", GROUPED | {"attention_bias": True}),
    "all biases": ("llama", "Llama", GROUPED | {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("qwen2", "Qwen2", GROUPED),
    "qwen2 tied": ("qwen2", "Qwen2", GROUPED | {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", "Qwen3", GROUPED | {"head_dim": 32}),
    "gemma": ("gemma", "Gemma", GROUPED | {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", "Gemma2", GROUPED | GEMMA2),
    "gptneox": ("gptneox", "GPTNeoX", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25, "rope_theta": 10000.0}}),
    "gptneox, all rotated": ("gptneox", "GPTNeoX", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}}),
    "gptneox serial": ("gptneox", "GPTNeoX", {"use_parallel_residual": False}),
}


def make_model(family: str, overrides: dict[str, Any]) -> Any:
    """A model whose weights are large enough for every one of them to matter."""
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**(SHAPE | overrides))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.15)
    return model


def numpy_weights(model: Any) -> dict[str, np.ndarray]:
    """Under the names of published files: GPT-NeoX calls its output matrix embed_out there."""
    head = "embed_out.weight" if model.config.model_type == "gpt_neox" else "lm_head.weight"
    named = {head if name == "lm_head.weight" else name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return {name: values for name, values in named.items() if name != head or not model.config.tie_word_embeddings}


def round_trip(tmp_path: Path, architecture: str, model: Any, **changes: Any) -> Any:
    """The model that comes out; every weight of it came from the file, none was left over, and mqlab reads the same shape."""
    config = model.config.to_dict()
    source = write_hf_gguf(tmp_path / "model.gguf", architecture, config, numpy_weights(model), **changes)
    folder = tmp_path / "folder"
    folder.mkdir()
    convert(source, folder, progress=False)
    assert read_architecture(load_config(folder)) == read_architecture({**config, "architectures": [type(model).__name__]})
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    loaded, info = load(folder, output_loading_info=True)
    assert not any(info.values()), info
    assert type(loaded) is type(model)
    return loaded.eval()


def logits(model: Any) -> torch.Tensor:
    """[24, vocab]: longer than the sliding window."""
    tokens = torch.randint(3, SHAPE["vocab_size"], (1, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(tokens).logits[0]


@pytest.mark.parametrize("case", CASES)
def test_float32_logits_are_equal(tmp_path: Path, case: str) -> None:
    architecture, family, overrides = CASES[case]
    model = make_model(family, overrides)
    assert (logits(model) - logits(round_trip(tmp_path, architecture, model))).abs().max() < 1e-4


@pytest.mark.parametrize("case", ["grouped", "qwen2", "qwen3", "gptneox"])
def test_q8_0_logits_are_close(tmp_path: Path, case: str) -> None:
    architecture, family, overrides = CASES[case]
    model = make_model(family, overrides)
    back = round_trip(tmp_path, architecture, model, kind=GGMLQuantizationType.Q8_0)
    assert torch.cosine_similarity(logits(model).flatten(), logits(back).flatten(), dim=0) > 0.999


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_comes_back_from_its_divisors(tmp_path: Path, factor: float) -> None:
    rope = LLAMA3 | {"factor": factor, "rope_theta": 500000.0}
    shape = GROUPED | {"head_dim": 64, "max_position_embeddings": 131072}
    model = make_model("Llama", shape | {"rope_parameters": rope})
    plain = make_model("Llama", shape | {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}})
    divisors = plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq
    raw = {"rope_freqs.weight": (divisors.numpy(), GGMLQuantizationType.F32)}
    back = round_trip(tmp_path, "llama", model, raw=raw)
    assert dict(back.config.rope_parameters) == rope
    assert (logits(model) - logits(back)).abs().max() < 1e-4
    assert (logits(model) - logits(plain)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("rope", "metadata"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ({"rope_type": "linear", "factor": 2.0}, {"rope.scale_linear": 2.0}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16},
        ),
    ],
)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_scaled_positions(tmp_path: Path, architecture: str, rope: dict[str, Any], metadata: dict[str, Any]) -> None:
    model = make_model(architecture.capitalize(), GROUPED | {"rope_parameters": rope | {"rope_theta": 1e6}})
    keys = {f"{architecture}.{key}": value for key, value in metadata.items()}
    back = round_trip(tmp_path, architecture, model, metadata=keys)
    assert (logits(model) - logits(back)).abs().max() < 1e-4
    assert (logits(model) - logits(make_model(architecture.capitalize(), GROUPED))).abs().max() > 1e-3


@pytest.mark.full
@pytest.mark.parametrize("kind", [GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0])
def test_the_default_model_survives(tmp_path: Path, model_folder: Path, kind: GGMLQuantizationType) -> None:
    """Q8_0's own rounding moves single positions of this model by as much as a cosine of 0.997: what is held is the rounded model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder).eval()
    prompt = torch.tensor([Tokenizer.load(model_folder).encode("The capital of France is a city on the Seine")])
    with torch.no_grad():
        plain, got = (one(prompt).logits[0] for one in (model, round_trip(tmp_path, "llama", model, kind=kind)))
        if kind == GGMLQuantizationType.Q8_0:
            round_to_q8_0(model)
        expected = model(prompt).logits[0]
    assert (expected - got).abs().max() < 1e-4
    assert torch.cosine_similarity(plain, got, dim=-1).mean() > 0.999
    assert torch.equal(plain[0].argmax(), got[0].argmax())


def round_to_q8_0(model: Any) -> None:
    """Every matrix as Q8_0 keeps it: blocks of 32 with a float16 scale, the largest magnitude at 127."""
    for weight in model.parameters():
        if weight.dim() == 2:
            blocks = weight.reshape(-1, 32)
            scale = blocks.abs().amax(1, keepdim=True) / 127
            steps = blocks * torch.where(scale > 0, 1 / scale, torch.zeros(()))  # as ggml has it, which decides ties
            weight.copy_((_half_away(steps) * scale.half().float()).reshape(weight.shape))


def _half_away(x: torch.Tensor) -> torch.Tensor:
    """Rounded to whole numbers, halves away from zero."""
    return torch.sign(x) * torch.floor(x.abs() + 0.5)
