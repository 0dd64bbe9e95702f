"""Small models with random weights, written as transformers writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}

UNGROUPED = ("GPTNeoX",)
"""Families whose heads all have keys of their own, of the size that is left for them."""

PLUS_ONE = ("Gemma", "Gemma2")
"""Families that add 1 to the weights of their norms."""

MakeModel = Callable[..., Any]


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """``make_model("Llama", tie_word_embeddings=True)``: a transformers model, saved in ``tmp_path``."""

    def make(family: str = "Llama", dtype: torch.dtype = torch.float32, shard: str = "1GB", **overrides: Any) -> Any:
        shape = {name: value for name, value in SHAPE.items() if family not in UNGROUPED or name not in ("num_key_value_heads", "head_dim")}
        config = getattr(transformers, f"{family}Config")(**{**shape, "sliding_window": None, **overrides})
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config).to(dtype).eval()
        _randomise(model, norm=0.0 if family in PLUS_ONE else 1.0)
        model.save_pretrained(tmp_path, max_shard_size=shard)
        (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 5, "content": "<end>"}]}))
        return model

    return make


@pytest.fixture
def llama(make_model: MakeModel) -> Any:
    """One of them."""
    return make_model("Llama", tie_word_embeddings=True)


def _randomise(model: torch.nn.Module, norm: float) -> None:
    """Biases and norms start as zeros and ones, which would hide that they are not used; larger weights spread the logits."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(norm if "norm" in name else 0.0, 0.15)
