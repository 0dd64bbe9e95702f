"""Speculation by n-gram lookup: guesses, what verifies them, and that nobody can tell by the tokens."""

from __future__ import annotations

from typing import Any

import pytest
from checksum import ChecksumRunner, build_core, build_runner, drain, solo
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlab.engine.engine_core import EngineCore
from mqlab.engine.ngram import Ngrams
from mqlab.types import EngineStats, Request, SamplingParams

ROOM = 128
PROMPT = [3, 4, 5, 3, 4, 5]


def proposed(tokens: list[int], low: int, high: int, count: int) -> tuple[int, ...]:
    """What a search through the whole text finds."""
    for size in range(high, low - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[len(tokens) - size :]:
                return tuple(tokens[start + size : start + size + count])
    return ()


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], ()),
        ([1], ()),
        ([1, 1], (1,)),
        ([1, 2, 3, 1, 2], (3, 1, 2)),
        ([1, 2, 3, 9, 2, 4, 1, 2], (3, 9, 2)),
        ([1, 2, 5, 1, 2, 6, 1, 2], (6, 1, 2)),
        ([1, 2, 3, 4], ()),
        ([7, 7, 7, 7, 7], (7,)),
    ],
)
def test_the_latest_of_the_longest_runs_is_followed(tokens: list[int], expected: tuple[int, ...]) -> None:
    assert Ngrams(1, 3).propose(tokens, 3) == expected


@settings(max_examples=200)
@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 3), st.integers(0, 2), st.integers(1, 5), st.data())
def test_a_growing_text_is_searched_as_if_anew(tokens: list[int], low: int, more: int, count: int, data: st.DataObject) -> None:
    ngrams = Ngrams(low, low + more)
    for length in sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=6))):
        assert ngrams.propose(tokens[:length], count) == proposed(tokens[:length], low, low + more, count)


def started(**config: Any) -> tuple[ChecksumRunner, EngineCore]:
    runner = build_runner(**{"num_speculative_tokens": 3, "prompt_lookup_min": 1, "max_num_batched_tokens": 32, **config})
    return runner, build_core(runner)


def ask(id: str = "r", max_tokens: int | None = 40, **params: Any) -> Request:
    return Request(id, PROMPT, SamplingParams(**{"max_tokens": max_tokens, "ignore_eos": True, "seed": 1, **params}))


def run(core: EngineCore, *requests: Request) -> EngineStats:
    for request in requests:
        core.add(request)
    answers = drain(core).answers
    assert [answers[0, request.id] for request in requests] == [solo(request, ROOM) for request in requests]
    return core.calls["stats"]()


@pytest.mark.parametrize("config", [{}, {"async_scheduling": True}, {"num_scheduler_steps": 4}, {"enable_prefix_caching": False}])
def test_right_guesses_save_steps_and_change_nothing(config: dict[str, Any]) -> None:
    runner, core = started(**config)
    stats = run(core, ask())
    assert 0 < stats.accepted < stats.drafted
    assert stats.generation_tokens == 40
    assert stats.drafted == sum(chunk.drafts for plan in runner.plans for chunk in plan.chunks)
    plain = sum(chunk.rounds for plan in runner.plans for chunk in plan.sampling)
    assert plain == 40 - stats.accepted


@pytest.mark.parametrize("params", [{"max_tokens": 1}, {"max_tokens": 2}, {"max_tokens": None}, {"min_tokens": 9, "ignore_eos": False}])
def test_it_ends_where_it_should(params: dict[str, Any]) -> None:
    _, core = started()
    for seed in range(30):
        stats = run(core, ask(seed=seed, **params))
        assert stats.blocks_used == 0


def test_off_by_default() -> None:
    runner = build_runner()
    stats = run(build_core(runner), ask())
    assert (stats.drafted, stats.accepted) == (0, 0)
    assert not any(chunk.drafts for plan in runner.plans for chunk in plan.chunks)


def test_who_steers_guesses_nothing() -> None:
    runner, core = started()
    stats = run(core, ask(repetition_penalty=1.1))
    assert stats.drafted == 0
    assert {len(chunk.tokens) for plan in runner.plans[1:] for chunk in plan.chunks} == {1}


def test_a_step_with_guesses_has_one_round_and_others_have_more() -> None:
    runner, core = started(num_scheduler_steps=4)
    run(core, ask())
    drafts = {plan.rounds for plan in runner.plans if any(chunk.drafts for chunk in plan.chunks)}
    assert drafts == {1}
    assert max(plan.rounds for plan in runner.plans) > 1


def test_nobody_runs_ahead_of_a_guess() -> None:
    runner, core = started(async_scheduling=True)
    run(core, ask("a"), ask("b"))
    assert all(chunk.follows is None for plan in runner.plans for chunk in plan.chunks)


def test_guesses_take_what_budget_and_blocks_are_left() -> None:
    runner, core = started(max_num_seqs=4, max_num_batched_tokens=5, num_blocks=12, max_model_len=44)
    requests = [ask(f"r{i}", max_tokens=30, seed=i) for i in range(4)]
    for request in requests:
        core.add(request)
    answers = drain(core).answers
    assert [answers[0, request.id] for request in requests] == [solo(request, 44) for request in requests]
    stats = core.calls["stats"]()
    assert stats.drafted > 0 and stats.preemptions > 0 and stats.blocks_used == 0
    assert max(sum(len(chunk.tokens) for chunk in plan.chunks) for plan in runner.plans) == 5


def test_an_abort_in_flight_of_a_guess_gives_all_back() -> None:
    runner, core = started()
    core.add(ask())
    while not any(chunk.drafts for chunk in (runner.plans[-1].chunks if runner.plans else ())):
        flight = core.begin()
        core.finish(flight.wait())
    flight = core.begin()
    core.abort(("r",))
    core.finish(flight.wait())
    assert core.calls["stats"]().blocks_used == 0
    run(core, ask("again"))


def test_several_tokens_of_a_guess_come_as_one_delta() -> None:
    _, core = started()
    core.add(ask())
    bursts = drain(core).bursts
    assert sum(bursts) == 40 and max(bursts) > 1
