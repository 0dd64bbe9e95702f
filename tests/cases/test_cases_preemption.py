"""C05: 2.5 of 6 requests fit into the pool at their full length, so they preempt one another; nobody but the counter may notice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from engines import Answer, at_rest, front_of, parting, streamed, whole

from mqlab.types import SamplingParams

BLOCK = 16
HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "repetition": {"repetition_penalty": 1.3},
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 1.5},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "without a prefix cache, in small chunks": {"enable_prefix_caching": False, "max_num_batched_tokens": 64},
    "multi-step, ahead": {"num_scheduler_steps": 4, "async_scheduling": True},
    "guessing, by priority": {"num_speculative_tokens": 4, "prompt_lookup_min": 1, "scheduling_policy": "priority"},
}
Alone = dict[tuple[int, str], Answer]
"""By prompt and penalty."""


def prompts(length: int) -> list[list[int]]:
    """Six, and a word over and over in each of them, for the penalties to act on."""
    return [[300 + 7 * i, *([260 + i, 1000] * length)][:length] for i in range(6)]


def tight(length: int) -> int:
    """Blocks for two and a half of them."""
    return int(2.5 * -(-2 * length // BLOCK))


def params(how: str, length: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, **HOW[how], **more)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(small: Path) -> Alone:
    return await by_themselves(small, 150)


def kinds(mixed: bool) -> list[str]:
    """The penalty of each of six requests."""
    return [[*HOW][i % len(HOW)] if mixed else "plain" for i in range(6)]


async def by_themselves(folder: Path, length: int) -> Alone:
    """Each by itself, with logprobs of what it was drawn from."""
    limits = {"logprobs_mode": "processed_logprobs", "enable_prefix_caching": False, "num_kv_blocks": 2 * tight(length)}
    asked = {*enumerate(kinds(False)), *enumerate(kinds(True))}
    async with front_of(folder, max_model_len=2 * length, **limits) as front:
        return {(i, how): await whole(front, prompts(length)[i], params(how, length, logprobs=2)) for i, how in sorted(asked)}


async def check_preempted(folder: Path, alone: Alone, length: int, mixed: bool, config: dict[str, Any]) -> None:
    async with front_of(folder, max_model_len=2 * length, num_kv_blocks=tight(length), **config) as front:
        asked = zip(kinds(mixed), prompts(length), strict=True)
        answers = await asyncio.gather(*(streamed(front, ids, params(how, length)) for how, ids in asked))
        stats = await front.client.stats()
    assert stats.preemptions > 0
    assert at_rest(stats)
    for i, (how, answer) in enumerate(zip(kinds(mixed), answers, strict=True)):
        (choice,) = answer.choices
        assert parting(choice, alone[i, how].choices[0]) is None, (i, how)
        assert (choice.finish, answer.usage) == ("length", alone[i, how].usage)
        assert answer.usage is not None and (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (length, length)
        assert len(choice.tokens) == length
        assert choice.text == front.text.tokenizer.decode(choice.tokens)


@pytest.mark.parametrize("mixed", [False, True], ids=["plain", "penalised"])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.asyncio(loop_scope="module")
async def test_answers_are_those_of_each_alone(config: str, mixed: bool, small: Path, alone: Alone) -> None:
    await check_preempted(small, alone, 150, mixed, CONFIGS[config])


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_answers_of_the_default_model_are_those_of_each_alone(model_folder: Path) -> None:
    alone = await by_themselves(model_folder, 150)
    for config in CONFIGS:
        for mixed in (False, True):
            await check_preempted(model_folder, alone, 150, mixed, CONFIGS[config])
