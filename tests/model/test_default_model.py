"""The default model against transformers: greedy tokens, alone and in mixed batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from checksum import drain

from mqlab.clock import ManualClock
from mqlab.config import EngineConfig
from mqlab.engine.engine_core import EngineCore
from mqlab.model.runner import build
from mqlab.types import Request, SamplingParams

NEW = 32
TIE = 1e-4
PARAMS = SamplingParams(temperature=0, max_tokens=NEW)
TEXTS = [
    "The capital of France is",
    "1 2 3 4 5 6 7",
    "def fibonacci(n):\n    ",
    "Once upon a time, there was a",
    "Water boils at",
    "The three primary colours are",
    "import numpy as np\n\n",
    "Q: What is 12 * 12?\nA:",
    "Il était une fois",
    "The quick brown fox",
    "🙂🙂🙂🙂",
    "To be, or not to be,",
    "SELECT name FROM users WHERE",
    "Dear Sir or Madam,\n",
    "The meaning of life",
    "In 1969, humans first",
    "Once",
    "A list of fruits:\n- apple\n-",
    "The mitochondria is",
    "Photosynthesis is the process by which plants make food from light. " * 12 + "In short,",
]


@pytest.fixture(scope="module")
def prompts(model_folder: Path) -> list[list[int]]:
    tokenizer = tokenizers.Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in TEXTS]


@pytest.fixture(scope="module")
def reference(model_folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def wanted(reference: Any, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers generates."""
    return [generate(reference, prompt) for prompt in prompts]


@torch.inference_mode()
def generate(model: Any, prompt: list[int]) -> list[int]:
    tokens = torch.tensor([prompt])
    out = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, do_sample=False)
    return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def core(model_folder: Path) -> Iterator[EngineCore]:
    limits: dict[str, Any] = {"num_kv_blocks": 200, "max_num_seqs": 16, "max_num_batched_tokens": 128}
    config = EngineConfig(model=str(model_folder), dtype="float32", num_threads=1, **limits)
    core = EngineCore(build(config), config, ManualClock())
    yield core
    core.close()


def serve(core: EngineCore, prompts: list[list[int]]) -> list[list[int]]:
    for i, prompt in enumerate(prompts):
        core.add(Request(str(i), prompt, PARAMS))
    answers = drain(core).answers
    return [list(answers[0, str(i)].tokens) for i in range(len(prompts))]


def same_but_for_ties(reference: Any, prompt: list[int], actual: list[int], wanted: list[int]) -> bool:
    """Equal, or parted at a position where transformers itself has two tokens within ``TIE`` of each other."""
    if actual == wanted:
        return True
    at = next((i for i, (a, b) in enumerate(zip(actual, wanted, strict=False)) if a != b), None)
    if at is None:
        return False
    with torch.inference_mode():
        best = reference(torch.tensor([prompt + wanted[:at]])).logits[0, -1].topk(2)
    return actual[at] in best.indices and float(best.values[0] - best.values[1]) < TIE


def assert_same(reference: Any, prompts: list[list[int]], actual: list[list[int]], wanted: list[list[int]]) -> None:
    rows = zip(TEXTS, prompts, actual, wanted, strict=True)
    assert [text for text, prompt, a, w in rows if not same_but_for_ties(reference, prompt, a, w)] == []


def test_greedy_alone(core: EngineCore, reference: Any, prompts: list[list[int]], wanted: list[list[int]]) -> None:
    assert_same(reference, prompts, [serve(core, [prompt])[0] for prompt in prompts], wanted)


def test_greedy_in_mixed_batches_of_16(core: EngineCore, reference: Any, prompts: list[list[int]], wanted: list[list[int]]) -> None:
    """20 requests on 16 places: decodes, short prefills and a long prompt in chunks share the steps."""
    assert_same(reference, prompts, serve(core, prompts), wanted)
    assert core.calls["stats"]().blocks_used == 0
