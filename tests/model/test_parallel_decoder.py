"""A decoder in shares gives the logits of the whole one, whatever the family and however uneven the shares."""

from __future__ import annotations

import hashlib
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from plans import Line
from ranked import ranked
from torch import Tensor

from mqlab.model.architecture import Architecture, read_architecture
from mqlab.model.attention import use_threads
from mqlab.model.batch import BatchTensors
from mqlab.model.decoder import Decoder
from mqlab.model.kv import allocate
from mqlab.model.making import Group
from mqlab.plan import Plan

BLOCK = 16
TOKENS = tuple((7 * i * i + 3) % 97 for i in range(90))
LINE = Line(TOKENS, tuple(range(6)))
CUTS = (0, 70, 71, 90)  # a long chunk, a decode, a short one

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 104,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 24, "sliding_window": 30}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "smollm2": ("LlamaForCausalLM", {"num_attention_heads": 9, "tie_word_embeddings": True}),
    "mistral, one kv head": ("MistralForCausalLM", {"num_key_value_heads": 1, "sliding_window": 40}),
    "qwen2, seven queries a key": ("Qwen2ForCausalLM", {"num_attention_heads": 7, "num_key_value_heads": 1}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "gemma": ("GemmaForCausalLM", {"num_attention_heads": 3}),
    "gemma2": ("Gemma2ForCausalLM", CAPS),
    "gpt-neox": ("GPTNeoXForCausalLM", {"num_attention_heads": 3}),
    "gpt-neox, one after the other": ("GPTNeoXForCausalLM", {"num_attention_heads": 4, "use_parallel_residual": False}),
}


class Seeded:
    """Any tensor by name: norms around 1, all else around 0, biases included."""

    def __contains__(self, name: str) -> bool:
        return False

    def read(self, name: str, *shape: int) -> Tensor:
        seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest())
        mean = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
        return torch.empty(math.prod(shape)).normal_(mean, 0.2, generator=torch.Generator().manual_seed(seed)).view(shape)


def architecture(family: str) -> Architecture:
    name, changes = FAMILIES[family]
    return read_architecture({"architectures": [name], **SHAPE, **changes})


def logits_of(arch: Architecture, group: Group) -> Tensor:
    """Of the last token of each cut; a rank holds no more of the cache than its own heads."""
    use_threads(1)
    with torch.inference_mode():
        decoder = Decoder(arch, Seeded(), arch.max_len, group)
        cache = allocate(decoder.arch, 6, BLOCK, torch.float32)
        batches = [BatchTensors.of(Plan((LINE.chunk(start, end),)), BLOCK) for start, end in pairwise(CUTS)]
        return torch.cat([decoder.logits(decoder.states(batch, cache)[batch.logit_rows]) for batch in batches])


def assert_shares_agree(family: str, size: int) -> None:
    arch = architecture(family)
    (whole,) = ranked(1, lambda group: logits_of(arch, group))
    assert whole.std() > 0.1, "the logits say something"
    for own in ranked(size, lambda group: logits_of(arch, group)):
        torch.testing.assert_close(own, whole, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", [name for name in FAMILIES if "mistral" not in name])
def test_two_ranks(family: str) -> None:
    assert_shares_agree(family, 2)


@pytest.mark.parametrize("family", ["smollm2", "mistral, one kv head", "gpt-neox"])
def test_three_ranks(family: str) -> None:
    assert_shares_agree(family, 3)


@pytest.mark.full
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_all(family: str, size: int) -> None:
    assert_shares_agree(family, size)
