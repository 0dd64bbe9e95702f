"""C31: several steps to a schedule give the same texts and the same usage as one, whatever ends, arrives or leaves in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from engines import Answer, at_rest, difference, front_of, streamed, whole

from mqlab.contract.waiting import until
from mqlab.front.frontend import Frontend
from mqlab.types import SamplingParams

ROOM = 96
PROMPTS = [[500 + 11 * i, 900, 901 + i] for i in range(3)]
LONG = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
LONGER = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
STEPS: list[dict[str, Any]] = [
    {"num_scheduler_steps": 4},
    {"num_scheduler_steps": 4, "multi_step_stream_outputs": False},
    {"num_scheduler_steps": 20, "async_scheduling": True},
]


async def one_step(folder: Path, ask: Callable[[Frontend], Any]) -> Any:
    async with front_of(folder, max_model_len=ROOM, num_kv_blocks=60, enable_prefix_caching=False) as front:
        return await ask(front)


def endings(greedy: list[Answer]) -> list[tuple[list[int], SamplingParams]]:
    """Ends at each place of a burst: lengths, stop strings and ids out of the text itself, end tokens forced, two choices, no limit."""
    asked = []
    for prompt, answer in zip(PROMPTS[:2], greedy, strict=True):
        (choice,) = answer.choices
        asked += [(prompt, SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, n=n)) for count in (1, 3, 5) for n in (1, 2)]
        asked += [
            (prompt, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=(choice.text[at : at + 3],), n=n))
            for at in (9, 14, 21, 40)
            for n in (1, 2)
        ]
        asked += [(prompt, SamplingParams(temperature=0, max_tokens=40, stop_token_ids=(choice.tokens[at],))) for at in (1, 2, 5, 6, 21)]
    end: dict[str, Any] = {"logit_bias": {2: 4.0}, "max_tokens": None, "logprobs": 1}
    asked += [(PROMPTS[0], SamplingParams(seed=seed, n=2, **end)) for seed in range(8)]
    asked += [(PROMPTS[1], SamplingParams(seed=1, n=2, ignore_eos=True, max_tokens=None))]
    asked += [(PROMPTS[2], SamplingParams(seed=2, n=2, min_tokens=6, max_tokens=11, logit_bias={2: 9.0}))]
    return asked


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wanted(small: Path) -> list[tuple[list[int], SamplingParams, Answer]]:
    async def ask(front: Frontend) -> list[tuple[list[int], SamplingParams, Answer]]:
        greedy = [await whole(front, prompt, LONG) for prompt in PROMPTS[:2]]
        return [(prompt, params, await whole(front, prompt, params)) for prompt, params in endings(greedy)]

    return await one_step(small, ask)


def test_the_cases_are_hit(wanted: list[tuple[list[int], SamplingParams, Answer]]) -> None:
    ends = [(choice.finish, type(choice.stop_reason), len(choice.tokens) % 4) for _, _, answer in wanted for choice in answer.choices]
    assert {finish for finish, *_ in ends} == {"stop", "length"}
    assert {kind for _, kind, _ in ends} == {type(None), str, int}
    assert {place for finish, _, place in ends if finish == "stop"} == {0, 1, 2, 3}
    assert any(params.max_tokens is None and choice.finish == "length" for _, params, answer in wanted for choice in answer.choices)


@pytest.mark.parametrize("config", STEPS, ids=str)
@pytest.mark.asyncio(loop_scope="module")
async def test_every_end_in_a_burst(config: dict[str, Any], small: Path, wanted: list[tuple[list[int], SamplingParams, Answer]]) -> None:
    async with front_of(small, max_model_len=ROOM, num_kv_blocks=400, **config) as front:
        alone = [difference(await streamed(front, prompt, params), answer) for prompt, params, answer in wanted[::5]]
        assert not any(alone), alone
        answers = await asyncio.gather(*(streamed(front, prompt, params) for prompt, params, _ in wanted))
        await until(lambda: at_rest(front.client.glance()))  # pyright: ignore[reportAttributeAccessIssue]
    found = [(params, told) for (_, params, answer), got in zip(wanted, answers, strict=True) if (told := difference(got, answer))]
    assert not found


@pytest.mark.parametrize(("topology", "steps"), [("inproc", 1), ("inproc", 4), ("aio", 4), ("aio", 20)])
async def test_who_comes_or_leaves_in_a_burst_changes_nobody(topology: str, steps: int, small: Path) -> None:
    async def alone(front: Frontend) -> list[Answer]:
        return [await whole(front, prompt, params) for prompt, params in zip(PROMPTS, (LONG, LONGER, LONG), strict=True)]

    first, second, third = await one_step(small, alone)
    async with front_of(small, topology, max_model_len=ROOM, num_kv_blocks=60, num_scheduler_steps=steps) as front:
        runs = asyncio.create_task(streamed(front, PROMPTS[0], LONG))
        left = await streamed(front, PROMPTS[1], LONGER, leave_after=1)
        comes = await streamed(front, PROMPTS[2], LONG)
        assert not difference(await runs, first)
        assert not difference(comes, third)
        stats = await front.client.stats()
        assert at_rest(stats)
        assert stats.finished["abort"] == 1
    (part,), (all_of_it,) = left.choices, second.choices
    assert part.finish == "abort"
    assert all_of_it.text.startswith(part.text) and all_of_it.tokens[: len(part.tokens)] == part.tokens


@pytest.mark.parametrize("steps", [4, 20])
async def test_the_first_token_of_who_comes_is_in_the_next_schedule(steps: int, small: Path) -> None:
    """Counted in schedules, not in seconds: one that prefills has one round."""
    async with front_of(small, max_model_len=ROOM, num_kv_blocks=60, num_scheduler_steps=steps) as front:
        runs = front.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=80, ignore_eos=True))
        await anext(runs)
        before = (await front.client.stats()).steps
        comes = front.generate(PROMPTS[1], LONG)
        await anext(comes)
        after = (await front.client.stats()).steps
        await comes.aclose()
        await runs.aclose()
    assert after - before <= 2
