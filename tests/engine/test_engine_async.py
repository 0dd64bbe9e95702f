"""Running ahead: the next step is launched while one is in flight, and nobody can tell by the tokens."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from checksum import EOS, Answer, ChecksumFlight, ChecksumRunner, Inbox, build_core, build_runner, drain, solo

from mqlab.config import EngineConfig
from mqlab.engine.core import step
from mqlab.engine.echo import build as build_echo
from mqlab.engine.engine_core import EngineCore
from mqlab.engine.scheduler import Scheduler
from mqlab.engine.sequence import Sequence
from mqlab.plan import Plan, SampledTokens
from mqlab.types import EngineStats, Request, SamplingParams

PROMPT = [3, 4, 5]
STEPS = [1, 4]


def started(*requests: Request, **config: int) -> tuple[ChecksumRunner, EngineCore]:
    runner = build_runner(async_scheduling=True, **config)
    core = build_core(runner)
    for request in requests:
        core.add(request)
    return runner, core


def ask(max_tokens: int | None, id: str = "r") -> Request:
    return Request(id, PROMPT, SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=1))


def stopping(id: str = "s") -> tuple[Request, Answer]:
    """A request that an end token ends, after at least three tokens, and its answer."""
    for seed in range(1000):
        request = Request(id, PROMPT, SamplingParams(max_tokens=None, seed=seed))
        answer = solo(request, 128)
        if answer.finish == "stop" and 3 <= len(answer.tokens) <= 9:
            return request, answer
    raise AssertionError("no seed gives an end token soon")


def stats_of(core: EngineCore) -> EngineStats:
    return core.calls["stats"]()


@pytest.mark.parametrize("rounds", STEPS)
def test_the_wait_for_a_step_begins_after_the_launch_of_the_next(rounds: int) -> None:
    runner, core = started(ask(40, "a"), ask(20, "b"), num_scheduler_steps=rounds)
    drain(core)
    log, last = runner.log, len(runner.plans) - 1
    assert last > 5
    assert Counter(what for what, _ in log) == {"launch": last + 1, "wait": last + 1}
    for number in range(last):
        assert log.index(("launch", number + 1)) < log.index(("wait", number)) < log.index(("wait", number + 1))


def test_without_it_each_step_is_waited_for_before_the_next_is_launched() -> None:
    runner = build_runner()
    core = build_core(runner)
    core.add(ask(5))
    drain(core)
    assert runner.log == [(what, number) for number in range(5) for what in ("launch", "wait")]


@pytest.mark.parametrize("rounds", STEPS)
@pytest.mark.parametrize("max_tokens", [1, 2, 7, None])
def test_a_length_is_known_ahead_and_costs_no_step(max_tokens: int | None, rounds: int) -> None:
    plain = build_runner(num_scheduler_steps=rounds)
    core = build_core(plain)
    core.add(ask(max_tokens))
    answer = drain(core).answers[0, "r"]
    ahead, core = started(ask(max_tokens), num_scheduler_steps=rounds)
    assert drain(core).answers[0, "r"] == answer
    assert len(ahead.plans) == len(plain.plans)


def test_an_end_token_is_met_one_step_too_late_and_its_blocks_come_back_then() -> None:
    request, answer = stopping()
    runner, core = started(request)
    inbox = Inbox()
    while (0, "s") not in inbox.answers or inbox.answers[0, "s"].finish is None:
        inbox.take(step(core))
    assert inbox.answers[0, "s"] == answer
    assert answer.tokens[-1] == EOS
    assert len(runner.flights) == 1
    held = stats_of(core)
    assert (held.running, held.generation_tokens, held.blocks_used) == (0, len(answer.tokens), runner.blocks_in_flight)
    assert core.has_work
    assert step(core) == []
    assert not core.has_work
    rest = stats_of(core)
    assert (rest.generation_tokens, rest.blocks_used, rest.steps) == (len(answer.tokens), 0, len(runner.plans))


def test_an_abort_between_steps_is_answered_at_once_and_its_id_is_free() -> None:
    runner, core = started(ask(None))
    step(core)
    assert [(delta.tokens, delta.finish) for delta in core.abort(("r",))] == [([], "abort")]
    assert stats_of(core).blocks_used == runner.blocks_in_flight > 0
    again = ask(6)
    core.add(again)
    inbox = drain(core)
    assert inbox.answers == {(0, "r"): solo(again, 128)}
    assert stats_of(core).blocks_used == 0


def test_an_abort_in_flight_keeps_its_blocks_until_the_last_flight_is_done() -> None:
    runner, core = started(ask(None, "a"))
    flight = core.begin()
    assert core.abort(("a",)) == []
    inbox = Inbox()
    inbox.take(core.finish(flight.wait()))
    assert inbox.answers[0, "a"] == Answer((), "abort")
    assert stats_of(core).blocks_used == runner.blocks_in_flight > 0
    drain(core, inbox)
    assert stats_of(core).blocks_used == 0


def test_short_of_blocks_it_waits_for_what_is_in_flight_before_it_preempts() -> None:
    seen: list[tuple[int, int]] = []

    class Watched(ChecksumRunner):
        def launch(self, plan: Plan) -> ChecksumFlight:
            seen.append((stats_of(core).preemptions, len(self.flights)))
            return super().launch(plan)

    # Both fit at first; in the end one alone fills the pool.
    small = build_runner(num_blocks=6, block_size=2, max_model_len=12, async_scheduling=True)
    core = build_core(Watched(small.info, small.config))
    for id in "ab":
        core.add(ask(None, id))
    assert {answer.finish for answer in drain(core).answers.values()} == {"length"}
    assert {flights for _, flights in seen} == {0, 1}
    assert {flights for (before, _), (after, flights) in pairwise(seen) if after > before} == {0}


def test_blocks_go_back_with_the_last_of_several_flights() -> None:
    scheduler = Scheduler(8, 4, EngineConfig(max_num_seqs=2, max_num_batched_tokens=16))
    sequence = Sequence("r", 0, SamplingParams(), seed=0, tokens=list(PROMPT), num_prompt=3, max_new=9)
    scheduler.add(sequence)
    assert scheduler.schedule() and scheduler.schedule()
    held = scheduler.gauges()["blocks_used"]
    scheduler.remove(sequence)
    assert scheduler.schedule() is None
    for left in (held, 0):
        assert scheduler.land(SampledTokens(((7,),))).drew == [sequence]
        assert scheduler.gauges()["blocks_used"] == left
    assert held > 0


def test_a_request_that_comes_in_flight_joins_the_step_after_the_one_ahead() -> None:
    runner, core = started(ask(9, "a"))
    flight = core.begin()
    core.add(ask(9, "b"))
    core.finish(flight.wait())
    core.begin()
    assert [[chunk.id for chunk in plan.chunks] for plan in runner.plans] == [["a"], ["a"], ["a", "b"]]


@pytest.mark.parametrize("waited", [False, True])
def test_close_with_a_step_in_flight_is_safe(waited: bool) -> None:
    runner, core = started(ask(None))
    flight = core.begin()
    if waited:
        core.finish(flight.wait())
    assert runner.flights
    core.close()
    core.close()
    assert runner.closed == 1


@pytest.mark.parametrize("rounds", STEPS)
@pytest.mark.parametrize("params", [{"max_tokens": 9, "ignore_eos": True}, {"stop_token_ids": (7,)}, {"min_tokens": 8}, {}])
def test_an_echo_that_runs_ahead_answers_the_same(params: dict[str, object], rounds: int) -> None:
    answers, steps = [], []
    for ahead in (False, True):
        core = build_echo(max_model_len=40, num_scheduler_steps=rounds, async_scheduling=ahead)
        for id in "ab":
            core.add(Request(id, [5, 6, 7, EOS], SamplingParams(**params)))  # pyright: ignore[reportArgumentType]
        answers.append(drain(core).answers)
        stats = core.calls["stats"]()
        assert (stats.running, stats.blocks_used) == (0, 0)
        steps.append(stats.steps)
    assert answers[0] == answers[1]
    # A length is known ahead, an end token is not.
    assert steps[1] - steps[0] == ("ignore_eos" not in params)


def test_the_echos_device_does_one_step_after_the_other() -> None:
    core = build_echo(device_time=0.02, async_scheduling=True)
    core.add(Request("r", [5], SamplingParams(max_tokens=3)))
    before = core.calls["stats"]().stamp_ns
    drain(core)
    assert core.calls["stats"]().stamp_ns - before >= 60_000_000
