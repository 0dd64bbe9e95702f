"""C04: the prefix cache changes no answer. C55: logprobs of a prompt are whole and right when it is cached, chunked or preempted."""

from __future__ import annotations

import asyncio
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
import transformers
from engines import Answer, at_rest, difference, front_of, parting, streamed, whole

from mqlab.front.frontend import Frontend
from mqlab.types import SamplingParams, TokenLogprob

BLOCK = 16
STORY = [1000 + (37 * i) % 4000 for i in range(70)]
CUTS = (BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1)
PROMPTS = [STORY[:cut] + end for cut in CUTS for end in ([], [77, 78, 79])]
"""They part inside a block, at its edge and a token behind it."""
ROOM = 128
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
TOLD = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cold(small: Path) -> list[Answer]:
    """Each alone, without a cache."""
    async with front_of(small, max_model_len=ROOM, enable_prefix_caching=False, num_kv_blocks=20) as front:
        return [await whole(front, prompt, TOLD) for prompt in PROMPTS]


@pytest.mark.parametrize("budget", [16, 64, 1024])
@pytest.mark.parametrize("blocks", [200, 8], ids=["roomy", "tight"])
@pytest.mark.asyncio(loop_scope="module")
async def test_answers_are_those_without_it(blocks: int, budget: int, small: Path, cold: list[Answer]) -> None:
    """Twice one by one and twice all at once; a tight pool forgets in between, and preempts."""
    limits: dict[str, Any] = {"num_kv_blocks": blocks, "max_num_batched_tokens": budget, "max_num_seqs": 12}
    async with front_of(small, max_model_len=ROOM, **limits) as front:
        for _ in range(2):
            check([await whole(front, prompt, GREEDY) for prompt in PROMPTS], cold)
            check(await asyncio.gather(*(streamed(front, prompt, GREEDY) for prompt in PROMPTS)), cold)
        stats = await front.client.stats()
        assert 0 < stats.prefix_hits < stats.prefix_queries == 4 * sum(map(len, PROMPTS))
        assert at_rest(stats)
        assert (stats.preemptions > 0) == (blocks == 8)


def check(answers: list[Answer], wanted: list[Answer]) -> None:
    pairs = enumerate(zip(answers, wanted, strict=True))
    assert [i for i, (one, other) in pairs if parting(one.choices[0], other.choices[0]) is not None] == []
    assert [one.usage for one in answers] == [one.usage for one in wanted]


@pytest.mark.parametrize("prompt", [STORY[:40], STORY[:48]], ids=["inside a block", "at its edge"])
@pytest.mark.asyncio(loop_scope="module")
async def test_penalties_and_seeded_draws_are_the_same_on_a_hit(small: Path, prompt: list[int]) -> None:
    """The boundary between prompt and output does not move to where the cache ends."""
    asked = [
        SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, repetition_penalty=1.4),
        SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, presence_penalty=2.0),
        SamplingParams(max_tokens=30, ignore_eos=True, seed=4, n=3, frequency_penalty=1.0),
        SamplingParams(max_tokens=30, ignore_eos=True, seed=9, n=2, logprobs=2),
    ]
    async with front_of(small, max_model_len=ROOM, enable_prefix_caching=False, num_kv_blocks=40) as front:
        wanted = [await whole(front, prompt, params) for params in asked]
    async with front_of(small, max_model_len=ROOM, num_kv_blocks=40) as front:
        for _ in range(2):
            found = [difference(await whole(front, prompt, params), one) for params, one in zip(asked, wanted, strict=True)]
            assert not any(found), found
        assert (await front.client.stats()).prefix_hits > 0


@torch.inference_mode()
def plain_pass(folder: Path, tokens: list[int]) -> torch.Tensor:
    """Logprobs by transformers, [T, vocab]."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model(torch.tensor([tokens])).logits[0].log_softmax(-1)


def check_scores(scores: tuple[TokenLogprob | None, ...] | None, answer: Answer, prompt: list[int], wanted: torch.Tensor) -> None:
    """Of prompt and output: one for each token, none for the first, values and likeliest ones those of a plain forward pass."""
    (choice,) = answer.choices
    assert scores is not None and choice.logprobs is not None
    first, *others = (*scores, *choice.logprobs)
    assert first is None
    assert [one.token for one in others if one is not None] == [*prompt[1:], *choice.tokens]
    for row, one in zip(wanted, others, strict=False):
        assert one is not None
        best = row.topk(3)
        assert one.logprob == pytest.approx(float(row[one.token]), abs=1e-3)
        assert [other.logprob for other in one.top] == pytest.approx(best.values.tolist(), abs=1e-3)
        above, at_least = (row > one.logprob + 1e-3).sum(), (row > one.logprob - 1e-3).sum()
        assert above < one.rank <= at_least + 1


async def ask_twice(front: Frontend, prompt: list[int]) -> list[Answer]:
    """A prompt with a cold and with a warm cache, each beside two others that make blocks scarce."""
    scored = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3, prompt_logprobs=3)
    answers = []
    for _ in range(2):
        others = [streamed(front, [*prompt[:50], 5 + i] * 2, GREEDY) for i in range(2)]
        one, *_ = await asyncio.gather(streamed(front, prompt, scored), *others)
        answers += [one, await whole(front, prompt, scored)]
    return answers


@pytest.mark.parametrize(
    "config",
    [
        {"num_kv_blocks": 64},
        {"num_kv_blocks": 64, "max_num_batched_tokens": 16, "max_num_seqs": 8},
        {"num_kv_blocks": 12},
        {"num_kv_blocks": 12, "num_scheduler_steps": 4, "async_scheduling": True, "max_num_batched_tokens": 64},
        {"num_kv_blocks": 12, "num_speculative_tokens": 3, "prompt_lookup_min": 1},
    ],
    ids=["cached", "chunked", "preempted", "preempted, multi-step, ahead", "preempted, guessing"],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_logprobs_of_a_prompt_of_100_tokens(small: Path, config: dict[str, Any]) -> None:
    prompt = (STORY * 2)[:100]
    async with front_of(small, max_model_len=160, **config) as front:
        answers = await ask_twice(front, prompt)
        stats = await front.client.stats()
    assert at_rest(stats)
    assert (stats.preemptions > 0) == (config["num_kv_blocks"] == 12)
    wanted = plain_pass(small, [*prompt, *answers[0].choices[0].tokens])
    texts = [one.text for one in answers[0].prompt_logprobs or () if one is not None]
    for answer in answers:
        check_scores(answer.prompt_logprobs, answer, prompt, wanted)
        assert [one.text for one in answer.prompt_logprobs or () if one is not None] == texts
    ends = [*accumulate(map(len, texts))]
    decoded = front.text.tokenizer.decode(tuple(prompt), False)
    assert decoded.endswith("".join(texts)) and ends == sorted(ends)
