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

MakeModel = Callable[..., Any]


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """``make_model("Llama", tie_word_embeddings=True)``: a transformers model, saved in ``tmp_path``."""

    def make(family: str = "Llama", dtype: torch.dtype = torch.float32, shard: str = "1GB", **overrides: Any) -> Any:
        config = getattr(transformers, f"{family}Config")(**{**SHAPE, "sliding_window": None, **overrides})
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config).to(dtype).eval()
        _randomise(model)
        model.save_pretrained(tmp_path, max_shard_size=shard)
        (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 5, "content": "<end>"}]}))
        return model

    return make


def _randomise(model: torch.nn.Module) -> None:
    """Biases and norms start as zeros and ones, which would hide that they are not used; larger weights spread the logits."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.15)
