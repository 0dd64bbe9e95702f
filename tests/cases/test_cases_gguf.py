"""C71, C80: a GGUF file of a model answers as its safetensors do, in text and in chat, and stops where a turn ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hf_gguf import Vocabulary, write_hf_gguf
from safetensors.numpy import load_file
from small_model import END

from mqlab import LLM, SamplingParams
from mqlab.types import Completion

CONTROL = 3
PROMPTS = ["The sun rises", "naïve 🙂 and 你好", "  two  spaces 1234", "<|im_start|>user\nHi<|im_end|>\n"]
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name two animals. 🙂"}]
GREEDY = SamplingParams(temperature=0, max_tokens=20, logprobs=20)


def vocabulary(folder: Path) -> Vocabulary:
    """That of a folder's tokenizer, with its chat template."""
    original = json.loads((folder / "tokenizer.json").read_text())
    ids = original["model"]["vocab"]
    tokens = sorted(ids, key=ids.__getitem__)
    special = {token["content"] for token in original["added_tokens"]}
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    return Vocabulary(
        tokens=tokens,
        kinds=[CONTROL if token in special else 1 for token in tokens],
        pre="smollm",
        merges=[" ".join(merge) for merge in original["model"]["merges"]],
        options={"chat_template": template, "bos_token_id": 1, "eos_token_id": END},
    )


def answers(model: Path) -> list[Completion]:
    """Greedy ones to texts and to a chat, and a chat whose turn is made to end."""
    with LLM(str(model), num_threads=1, num_kv_blocks=64, max_model_len=256, dtype="float32") as llm:
        ends = SamplingParams(max_tokens=20, logit_bias={END: 100.0})
        return [
            *llm.generate(PROMPTS, GREEDY, use_tqdm=False),
            *llm.chat([TALK], GREEDY, use_tqdm=False),
            *llm.chat([TALK], ends, use_tqdm=False),
        ]


@pytest.fixture
def files(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv("MQLAB_CACHE", str(tmp_path / "cache"))
    config: dict[str, Any] = json.loads((small / "config.json").read_text())
    weights, words = load_file(small / "model.safetensors"), vocabulary(small)
    factors = {"rope_freqs.weight": (np.ones(8, np.float32), GGMLQuantizationType.F32)}
    return {
        "folder": small,
        "F32": write_hf_gguf(tmp_path / "f32.gguf", "llama", config, weights, vocabulary=words, raw=factors),
        "F16": write_hf_gguf(tmp_path / "f16.gguf", "llama", config, weights, kind=GGMLQuantizationType.F16, vocabulary=words),
    }


def test_answers_are_those_of_the_safetensors(files: dict[str, Path]) -> None:
    wanted = answers(files["folder"])
    for kind, told in (("F32", 1e-4), ("F16", 0.1)):
        got = answers(files[kind])
        assert [one.prompt_tokens for one in got] == [one.prompt_tokens for one in wanted]
        assert (got[-1].choices[0].tokens, got[-1].choices[0].finish, got[-1].text) == ((END,), "stop", "")
        for one, other in zip(got[:-1], wanted[:-1], strict=True):
            (choice,), (asked,) = one.choices, other.choices
            assert choice.logprobs is not None and asked.logprobs is not None
            first = [token.logprob for token in choice.logprobs[0].top]
            assert first == pytest.approx([token.logprob for token in asked.logprobs[0].top], abs=told)
            assert kind != "F32" or (choice.text, choice.tokens) == (asked.text, asked.tokens)
