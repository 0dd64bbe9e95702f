"""Several decode steps for one schedule: the same answers, cut where they end, and streamed as one likes."""

from __future__ import annotations

from typing import Any

import pytest
from checksum import EOS, Answer, ChecksumRunner, Inbox, build_core, build_runner, drain, solo

from mqlab.engine.core import step
from mqlab.engine.echo import build as build_echo
from mqlab.engine.engine_core import EngineCore
from mqlab.types import Request, SamplingParams, Step

ROOM = 128
PROMPT = [3, 4, 5]
ROUNDS = [1, 4, 20]


def started(rounds: int, **config: Any) -> tuple[ChecksumRunner, EngineCore]:
    runner = build_runner(num_scheduler_steps=rounds, **config)
    return runner, build_core(runner)


def ask(id: str = "r", seed: int = 1, **params: Any) -> Request:
    return Request(id, PROMPT, SamplingParams(seed=seed, **params))


def ends_after(count: int, **params: Any) -> Request:
    """A request that an end or stop token ends after so many tokens."""
    for seed in range(10_000):
        request = ask(seed=seed, max_tokens=None, **params)
        answer = solo(request, ROOM)
        if answer.finish == "stop" and len(answer.tokens) == count:
            return request
    raise AssertionError("no seed ends there")


def answer_of(core: EngineCore, request: Request) -> Answer:
    core.add(request)
    return drain(core).answers[0, request.id]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("max_tokens", [1, 3, 5, None])
def test_a_length_limit_is_kept_to_the_token(max_tokens: int | None, rounds: int) -> None:
    runner, core = started(rounds)
    request = ask(max_tokens=max_tokens, ignore_eos=True)
    assert answer_of(core, request) == solo(request, ROOM)
    drawn = sum(chunk.rounds for plan in runner.plans for chunk in plan.sampling)
    assert drawn == core.calls["stats"]().generation_tokens == (max_tokens or ROOM - len(PROMPT)), "no round is run in vain"


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("params", [{}, {"ignore_eos": True, "stop_token_ids": (7,)}])
def test_an_end_in_the_middle_of_a_burst_cuts_it_there(params: dict[str, Any], count: int, rounds: int) -> None:
    _, core = started(rounds)
    request = ends_after(count, **params)
    assert answer_of(core, request) == solo(request, ROOM)
    assert core.calls["stats"]().generation_tokens == count
    assert core.calls["stats"]().blocks_used == 0


@pytest.mark.parametrize("rounds", ROUNDS)
def test_min_tokens_ends_in_the_middle_of_a_burst(rounds: int) -> None:
    _, core = started(rounds)
    request = ends_after(7, min_tokens=6)
    assert answer_of(core, request) == solo(request, ROOM)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_two_choices_of_one_prompt(rounds: int) -> None:
    # The front gives each choice an id and a seed of its own.
    runner, core = started(rounds)
    choices = [ask(f"r-{i}", seed=7 + i, max_tokens=9) for i in range(2)]
    for choice in choices:
        core.add(choice)
    answers = drain(core).answers
    assert [answers[0, choice.id] for choice in choices] == [solo(choice, ROOM) for choice in choices]
    assert answers[0, "r-0"] != answers[0, "r-1"]
    assert len(runner.plans[0].chunks) == 2


@pytest.mark.parametrize("rounds", ROUNDS)
def test_who_comes_in_the_middle_of_a_burst_is_in_the_next_step(rounds: int) -> None:
    runner, core = started(rounds)
    core.add(ask("a", max_tokens=60, ignore_eos=True))
    step(core)
    flight = core.begin()
    late = ask("late", max_tokens=5, ignore_eos=True)
    core.add(late)
    inbox = Inbox()
    inbox.take(core.finish(flight.wait()))
    inbox.take(step(core))
    assert [chunk.id for chunk in runner.plans[2].chunks] == ["a", "late"]
    assert runner.plans[2].rounds == 1
    assert drain(core, inbox).answers[0, "late"] == solo(late, ROOM)


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("ahead", [False, True])
def test_an_abort_in_the_middle_of_a_burst_frees_its_blocks_behind_it(ahead: bool, rounds: int) -> None:
    runner, core = started(rounds, async_scheduling=ahead)
    stays = ask("stays", max_tokens=50, ignore_eos=True)
    core.add(stays)
    core.add(ask("gone", max_tokens=60, ignore_eos=True))
    step(core)
    flight = core.begin()
    assert core.abort(("gone",)) == []
    assert core.calls["stats"]().blocks_used >= runner.blocks_in_flight
    inbox = Inbox()
    inbox.take(core.finish(flight.wait()))
    assert inbox.answers[0, "gone"] == Answer((), "abort")
    tokens = drain(core, inbox).answers[0, "stays"].tokens
    assert tokens == solo(stays, ROOM).tokens[-len(tokens) :]
    assert core.calls["stats"]().blocks_used == 0


@pytest.mark.parametrize("steering", [{"repetition_penalty": 1.2}, {"bad_word_ids": ((3, 4),)}])
def test_a_step_with_one_that_steers_has_one_round(steering: dict[str, Any]) -> None:
    runner, core = started(4)
    requests = [ask("plain", max_tokens=20, ignore_eos=True), ask("steers", max_tokens=6, ignore_eos=True, **steering)]
    for request in requests:
        core.add(request)
    answers = drain(core).answers
    assert [answers[0, request.id] for request in requests] == [solo(request, ROOM) for request in requests]
    assert {plan.rounds for plan in runner.plans if "steers" in [chunk.id for chunk in plan.chunks]} == {1}
    assert max(plan.rounds for plan in runner.plans) == 4


def bursts(streamed: bool, core: Any) -> tuple[Inbox, list[int]]:
    """Two requests, of which one ends early; how many Steps each engine step gave client 0."""
    core.add(ask("a", max_tokens=11, ignore_eos=True))
    core.add(ask("b", max_tokens=7, ignore_eos=True))
    inbox, counts = Inbox(), []
    while core.has_work:
        events = step(core)
        inbox.take(events)
        counts.append(sum(isinstance(event, Step) for event in events))
    return inbox, counts


@pytest.mark.parametrize("kind", ["engine", "echo"])
def test_a_burst_goes_out_as_a_message_for_each_token_or_as_one(kind: str) -> None:
    seen = {}
    for streamed in (True, False):
        settings = {"num_scheduler_steps": 4, "multi_step_stream_outputs": streamed}
        core = build_core(build_runner(**settings)) if kind == "engine" else build_echo(**settings)
        inbox, counts = bursts(streamed, core)
        seen[streamed] = inbox.answers
        assert counts == ([1, 4, 4, 2] if streamed else [1, 1, 1, 1])
        assert inbox.bursts == ([1] * 11 if streamed else [1, 4, 4, 2])
    assert seen[True] == seen[False]
    assert {key: (len(answer.tokens), answer.finish) for key, answer in seen[True].items()} == {
        (0, "a"): (11, "length"),
        (0, "b"): (7, "length"),
    }


def test_the_end_comes_with_the_last_token_of_a_streamed_burst() -> None:
    _, core = started(20)
    core.add(ends_after(5))
    events = [event for _ in range(2) for event in step(core)]
    deltas = [delta for event in events if isinstance(event, Step) for delta in event.deltas]
    assert [(len(delta.tokens), delta.finish) for delta in deltas] == [(1, None)] * 4 + [(1, "stop")]
    assert deltas[-1].tokens == [EOS]
