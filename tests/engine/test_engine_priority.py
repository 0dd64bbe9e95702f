"""The priority policy: who goes first, and whose place and blocks that costs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from checksum import VOCAB, ChecksumFlight, ChecksumRunner, build_core, build_runner, drain, solo

from mqlab.engine.core import step
from mqlab.engine.engine_core import EngineCore
from mqlab.plan import Plan
from mqlab.types import EngineStats, Request, SamplingParams

ROOM = 128


def started(**config: Any) -> tuple[ChecksumRunner, EngineCore]:
    # Without the prefix cache, whose finds would blur who computes what.
    runner = build_runner(**{"scheduling_policy": "priority", "enable_prefix_caching": False, "max_num_batched_tokens": 64, **config})
    return runner, build_core(runner)


def ask(id: str, priority: int, length: int = 3, max_tokens: int = 8) -> Request:
    ids = [(ord(id[0]) + i) % VOCAB for i in range(length)]
    return Request(id, ids, SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=length), priority=priority)


def ids_of(plan: Plan) -> list[str]:
    return [chunk.id for chunk in plan.chunks]


def order(runner: ChecksumRunner) -> list[str]:
    """Requests by their first chunk."""
    return list(dict.fromkeys(id for plan in runner.plans for id in ids_of(plan)))


def stats_of(core: EngineCore) -> EngineStats:
    return core.calls["stats"]()


def finish(core: EngineCore, *requests: Request, room: int = ROOM) -> None:
    answers = drain(core).answers
    for request in requests:
        assert answers[0, request.id].tokens == solo(request, room).tokens[-len(answers[0, request.id].tokens) :]
        assert answers[0, request.id].finish == "length"
    assert (stats_of(core).running, stats_of(core).waiting, stats_of(core).blocks_used) == (0, 0, 0)


@pytest.mark.parametrize(("policy", "expected"), [("fcfs", "abcdef"), ("priority", "dbface")])
def test_the_lowest_number_goes_first_and_among_equals_the_first_to_come(policy: str, expected: str) -> None:
    runner, core = started(max_num_seqs=1, scheduling_policy=policy)
    requests = [ask(id, priority) for id, priority in zip("abcdef", (2, 0, 2, -1, 9, 0), strict=True)]
    for request in requests:
        core.add(request)
    finish(core, *requests)
    assert order(runner) == list(expected)


def test_a_better_one_takes_the_place_of_the_last_in_rank() -> None:
    runner, core = started(max_num_seqs=2)
    requests = [ask("a", 5), ask("b", 1), ask("c", 3)]
    for request in requests:
        core.add(request)
    step(core)
    core.add(urgent := ask("u", 0))
    step(core)
    assert [ids_of(plan) for plan in runner.plans] == [["b", "c"], ["b", "u"]]
    assert stats_of(core).preemptions == 1
    finish(core, *requests, urgent)
    assert order(runner) == ["b", "c", "u", "a"]


def test_equals_and_fcfs_preempt_nobody_for_a_place() -> None:
    for policy, priority in (("priority", 1), ("fcfs", 0)):
        _, core = started(max_num_seqs=1, scheduling_policy=policy)
        core.add(first := ask("a", 1))
        step(core)
        core.add(second := ask("b", priority))
        finish(core, first, second)
        assert stats_of(core).preemptions == 0


def test_a_better_one_takes_blocks_and_nobody_passes_it() -> None:
    runner, core = started(num_blocks=10, block_size=4, max_model_len=40)
    low = [ask("a", 5, length=11), ask("b", 5, length=11), ask("c", 5, length=3)]
    for request in low:
        core.add(request)
    step(core)
    core.add(urgent := ask("u", 0, length=17))
    step(core)
    # c went, then b; c would fit again, but waits behind b.
    assert set(ids_of(runner.plans[1])) == {"a", "u"}
    finish(core, *low, urgent, room=40)


def test_who_would_not_fit_even_then_preempts_nobody() -> None:
    _, core = started(num_blocks=10, block_size=4, max_model_len=40)
    core.add(first := ask("a", 0, length=20))
    core.add(last := ask("z", 5, length=3))
    step(core)
    core.add(large := ask("u", 1, length=30))
    step(core)
    assert (stats_of(core).preemptions, stats_of(core).running) == (0, 2)
    finish(core, first, last, large, room=40)


def test_a_better_one_takes_the_budget_of_those_that_decode() -> None:
    runner, core = started(max_num_seqs=3, max_num_batched_tokens=3)
    low = [ask(id, 5, length=1) for id in "ab"]
    for request in low:
        core.add(request)
    core.add(third := ask("c", 5, length=1))
    step(core)
    core.add(urgent := ask("u", 0, length=2))
    step(core)
    assert ids_of(runner.plans[1]) == ["a", "b", "u"]
    finish(core, *low, third, urgent)


def test_a_better_prompt_goes_before_one_that_is_partly_prefilled() -> None:
    runner, core = started(max_num_batched_tokens=8)
    core.add(long := ask("a", 5, length=30))
    step(core)
    core.add(urgent := ask("u", 0, length=6))
    step(core)
    assert [(chunk.id, len(chunk.tokens)) for chunk in runner.plans[1].chunks] == [("u", 6), ("a", 2)]
    assert stats_of(core).preemptions == 0
    finish(core, long, urgent)


def test_a_partly_prefilled_one_that_loses_its_place_begins_anew() -> None:
    runner, core = started(max_num_seqs=2, max_num_batched_tokens=8)
    core.add(long := ask("a", 5, length=30))
    core.add(second := ask("b", 4, length=2))
    step(core)
    core.add(urgent := ask("u", 0, length=6))
    step(core)
    assert [chunk.id for chunk in runner.plans[1].chunks] == ["b", "u"]
    finish(core, long, second, urgent)


def test_who_finds_the_budget_used_up_by_better_prompts_waits_for_the_next_step() -> None:
    runner, core = started(max_num_batched_tokens=8)
    core.add(low := ask("z", 9))
    step(core)
    core.add(first := ask("a", 0, length=20))
    core.add(second := ask("b", 1, length=5))
    step(core)
    assert [(chunk.id, len(chunk.tokens)) for chunk in runner.plans[1].chunks] == [("z", 1), ("a", 7)]
    finish(core, low, first, second)
    assert stats_of(core).preemptions == 0


@pytest.mark.parametrize("low", ["a", "ab"])
def test_nothing_in_flight_is_preempted(low: str) -> None:
    seen: list[tuple[int, int]] = []

    class Watched(ChecksumRunner):
        def launch(self, plan: Plan) -> ChecksumFlight:
            seen.append((stats_of(core).preemptions, len(self.flights)))
            return super().launch(plan)

    plain, _ = started(max_num_seqs=2, async_scheduling=True)
    core = build_core(Watched(plain.info, plain.config))
    requests = [ask(id, 5) for id in low]
    for request in requests:
        core.add(request)
    step(core)
    for request in [ask("u", 0), ask("v", 0)]:
        core.add(request)
        requests.append(request)
    finish(core, *requests)
    assert stats_of(core).preemptions == len(low)
    assert [flights for (before, _), (after, flights) in pairwise(seen) if after > before] == [0]
