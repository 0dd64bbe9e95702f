"""C38: a greedy text does not depend on what else is in the batch. C63: choices differ, can be had again, and share their prompt."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from engines import Answer, at_rest, difference, front_of, parting, streamed, whole

from mqlab.errors import InvalidRequest
from mqlab.front.frontend import Frontend
from mqlab.types import SamplingParams

TEXTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Il était une fois",
    "🙂🙂🙂🙂",
    "Once",
    "The quick brown fox jumps over the lazy dog. " * 4,
    "1 2 3 4 5 6 7",
    "Q: What is 12 * 12?\nA:",
    "ひらがなと漢字",
    "SELECT name FROM users WHERE",
    *(f"In {year}, the most important event was" for year in range(1960, 1970)),
]


async def check_batch_does_not_matter(folder: Path, new: int, **config: Any) -> int:
    """Alone, all together, and in random order while others run; how many parted at a tie."""
    asked = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    told = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, logprobs=2)
    async with front_of(folder, enable_prefix_caching=False, num_kv_blocks=200, max_model_len=256, **config) as front:
        alone = [await whole(front, text, told) for text in TEXTS]
        together = await asyncio.gather(*(streamed(front, text, asked) for text in TEXTS))
        mixed = await at_random(front, asked)
        assert at_rest(await front.client.stats())
    got = [(answer.choices[0], wanted.choices[0]) for answers in (together, mixed) for answer, wanted in zip(answers, alone, strict=True)]
    assert [(one.text, other.text) for one, other in got if parting(one, other) is not None] == []
    return sum(one.tokens != other.tokens for one, other in got)


async def at_random(front: Frontend, params: SamplingParams) -> list[Answer]:
    """Each comes once a few outputs of others have been read, six at a time at most."""
    rng = random.Random(7)
    room = asyncio.Semaphore(6)
    answers: dict[int, Answer] = {}

    async def one(index: int) -> None:
        async with room:
            for _ in range(rng.randrange(40)):
                await asyncio.sleep(0)
            answers[index] = await streamed(front, TEXTS[index], params)

    await asyncio.gather(*map(one, rng.sample(range(len(TEXTS)), len(TEXTS))))
    return [answers[index] for index in range(len(TEXTS))]


async def test_a_small_model_alone_together_and_in_any_order(small: Path) -> None:
    assert await check_batch_does_not_matter(small, 30) <= 1


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("config", [{}, {"max_num_batched_tokens": 64}, {"num_threads": 2}], ids=str)
async def test_the_default_model_alone_together_and_in_any_order(model_folder: Path, config: dict[str, Any]) -> None:
    assert await check_batch_does_not_matter(model_folder, 40, **config) <= 2


async def test_choices(small: Path) -> None:
    """Four choices of a prompt of 60 tokens, in four ways."""
    prompt = [1000 + 7 * i for i in range(60)]
    hot: dict[str, Any] = {"temperature": 1.0, "max_tokens": 30, "ignore_eos": True}
    async with front_of(small, max_model_len=128, num_kv_blocks=64) as front:
        seeded = await whole(front, prompt, SamplingParams(n=4, seed=7, **hot))
        stats = await front.client.stats()
        assert (stats.prefix_queries, stats.prefix_hits) == (4 * 60, 3 * 48), "its full blocks are computed once"
        assert len({choice.tokens for choice in seeded.choices}) == 4
        assert not difference(await streamed(front, prompt, SamplingParams(n=4, seed=7, **hot)), seeded)
        for choice in seeded.choices:
            alone = await whole(front, prompt, SamplingParams(seed=7 + choice.index, **hot))
            assert alone.choices[0].tokens == choice.tokens
        free = [await whole(front, prompt, SamplingParams(n=4, **hot)) for _ in range(2)]
        assert len({choice.tokens for answer in free for choice in answer.choices}) == 8
        greedy = await whole(front, prompt, SamplingParams(n=4, **{**hot, "temperature": 0}))
        assert len({(choice.text, choice.tokens) for choice in greedy.choices}) == 1
        assert greedy.usage == seeded.usage and seeded.usage is not None
        assert (seeded.usage.prompt_tokens, seeded.usage.completion_tokens) == (60, 120)
    with pytest.raises(InvalidRequest, match=r"n=16385 must be in \[1, 16384\]"):
        SamplingParams(n=16385)
