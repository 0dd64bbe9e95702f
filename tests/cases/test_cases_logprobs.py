"""Logprobs of the default model against a plain forward pass of transformers, however the engine came by them.

C54: a prompt that is only scored, over HTTP as evaluation harnesses ask for it. C55: prompts that are cached, chunked or preempted.
C63: several choices, with and without a seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from serving import served_by

from mqlab import LLM, SamplingParams
from mqlab.client.base import BaseClient
from mqlab.config import EngineConfig
from mqlab.text.tokenizer import Tokenizer
from mqlab.topologies import make_client
from mqlab.types import Completion, TokenLogprob
from mqlab.wire.wiring import Wiring

CLOSE = 1e-3
TOP = 3
SENTENCE = "Photosynthesis is the process by which green plants make food from light, water and air 🙂. "
SCORED = {"temperature": 0, "max_tokens": 6, "logprobs": TOP, "prompt_logprobs": TOP}


@pytest.fixture(scope="module")
def reference(model_folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()


def engine(model_folder: Path, **settings: Any) -> BaseClient:
    common = {"model": str(model_folder), "dtype": "float32", "num_threads": 1, "max_model_len": 256, "log_stats_interval": 0}
    return make_client("aio", Wiring.of(EngineConfig(**{**common, "num_kv_blocks": 64, **settings})))


def prompt_of(model_folder: Path, number: int) -> list[int]:
    """A hundred tokens; those of another number share nothing with it."""
    return Tokenizer.load(model_folder).encode(f"{number}. " + SENTENCE * 8)[:100]


def forward(reference: Any, ids: list[int]) -> torch.Tensor:
    """Row i: the logprobs of token i, float32 [tokens - 1, vocab]; the first token has none."""
    with torch.inference_mode():
        return torch.log_softmax(reference(torch.tensor([ids])).logits[0].float(), dim=-1)[:-1]


def check_row(found: TokenLogprob, token: int, row: torch.Tensor) -> None:
    assert found.token == token
    assert found.logprob == pytest.approx(float(row[token]), abs=CLOSE)
    assert found.rank == pytest.approx(int((row > row[token]).sum()) + 1, abs=3), "near ties may swap"
    assert [one.logprob for one in found.top] == pytest.approx(row.topk(TOP).values.tolist(), abs=CLOSE)
    assert all(one.logprob == pytest.approx(float(row[one.token]), abs=CLOSE) for one in found.top)


def check(reference: Any, completion: Completion) -> None:
    """Every token of prompt and answer, as a plain forward pass over both scores it."""
    (choice,) = completion.choices
    ids = [*completion.prompt_tokens, *choice.tokens]
    scores = [*(completion.prompt_logprobs or ()), *(choice.logprobs or ())]
    assert len(scores) == len(ids)
    assert scores[0] is None
    for found, token, row in zip(scores[1:], ids[1:], forward(reference, ids), strict=True):
        assert found is not None
        check_row(found, token, row)


@pytest.fixture(scope="module")
def llm(model_folder: Path) -> Iterator[LLM]:
    with LLM.of(engine(model_folder)) as llm:
        yield llm


def ask(llm: LLM, prompt: str | list[int], **params: Any) -> Completion:
    return llm.generate([prompt], SamplingParams(ignore_eos=True, **params), use_tqdm=False)[0]


def test_c55_first_and_second_time(llm: LLM, model_folder: Path, reference: Any) -> None:
    ids = prompt_of(model_folder, 1)
    first = ask(llm, ids, **SCORED)
    plain = ask(llm, ids, temperature=0, max_tokens=6)
    hits = llm.stats().prefix_hits
    second = ask(llm, ids, **SCORED)
    check(reference, first)
    check(reference, second)
    assert hits >= 80, "the plain request in between was served from the cache"
    assert first.choices[0].tokens == plain.choices[0].tokens == second.choices[0].tokens


def test_c55_in_chunks_and_preempted(model_folder: Path, reference: Any) -> None:
    """Chunks of 16 tokens at most, and blocks for two and a half of the six."""
    limits = {"max_num_batched_tokens": 16, "max_num_seqs": 6, "num_kv_blocks": 12}
    params = SamplingParams(**{**SCORED, "max_tokens": 16, "ignore_eos": True})
    prompts = [prompt_of(model_folder, number)[: 50 + number] for number in range(6)]
    with LLM.of(engine(model_folder, **limits)) as llm:
        completions = llm.generate(prompts, params, use_tqdm=False)
        assert llm.stats().preemptions > 0
    for completion in completions:
        check(reference, completion)


async def test_c54_a_prompt_that_is_only_scored(model_folder: Path, reference: Any) -> None:
    text = SENTENCE.strip()
    ids = Tokenizer.load(model_folder).encode(text)
    async with served_by(engine(model_folder)) as served, httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        for max_tokens in (0, 1):
            for logprobs in (0, 1, 5):
                body = {"prompt": text, "echo": True, "max_tokens": max_tokens, "logprobs": logprobs, "temperature": 0}
                answer = (await client.post("/v1/completions", json=body)).json()
                check_answer(reference, answer, text, ids, max_tokens)


def check_answer(reference: Any, answer: dict[str, Any], text: str, ids: list[int], max_tokens: int) -> None:
    (choice,) = answer["choices"]
    scores = choice["logprobs"]
    values, tokens = scores["token_logprobs"], scores["tokens"]
    rows = forward(reference, ids)
    assert choice["text"].startswith(text)
    assert "".join(tokens) == choice["text"]
    assert scores["text_offset"] == [sum(map(len, tokens[:i])) for i in range(len(tokens))]
    assert len(values) == len(ids) + max_tokens
    assert values[0] is scores["top_logprobs"][0] is None
    expected = [float(row[token]) for row, token in zip(rows, ids[1:], strict=True)]
    assert values[1 : len(ids)] == pytest.approx(expected, abs=CLOSE)
    assert sum(values[1 : len(ids)]) == pytest.approx(sum(expected), abs=CLOSE * len(ids))
    best = [max(top.values()) for top in scores["top_logprobs"][1:]]
    assert all(value <= most for value, most in zip(values[1:], best, strict=True))


def test_c63_several_choices(llm: LLM) -> None:
    def draw(**params: Any) -> list[tuple[int, ...]]:
        return [choice.tokens for choice in ask(llm, "Once upon a time", max_tokens=20, **params).choices]

    first = draw(n=4, temperature=1, seed=7)
    assert draw(n=4, temperature=1, seed=7) == first
    assert [*draw(temperature=1, seed=7), *draw(temperature=1, seed=9)] == [first[0], first[2]], "choice i is drawn with seed + i"
    assert len(set(first)) == len(set(draw(n=4, temperature=1))) == 4
    assert len(set(draw(n=4, temperature=0))) == 1
