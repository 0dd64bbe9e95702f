"""Whatever the workload, the pool, the budgets and the aborts: right answers, and everything given back."""

from __future__ import annotations

from dataclasses import dataclass

from checksum import EOS, VOCAB, Answer, ChecksumRunner, Inbox, build_core, build_runner, drain, solo
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlab.engine.core import apply
from mqlab.engine.engine_core import EngineCore
from mqlab.types import Abort, EngineStats, Request, SamplingParams


@dataclass(frozen=True)
class Timed:
    """A command, the step it comes with, and whether it comes while that step is on the device."""

    step: int
    in_flight: bool
    command: Request | Abort


@dataclass(frozen=True)
class Workload:
    runner: ChecksumRunner
    requests: tuple[Request, ...]
    commands: tuple[Timed, ...]

    @property
    def room(self) -> int:
        info = self.runner.info
        return min(info.max_model_len, info.num_blocks * info.block_size)


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.none() | st.integers(1, 24))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens or 12)),
        stop_token_ids=tuple(draw(st.lists(st.integers(0, VOCAB - 1), max_size=2))),
        ignore_eos=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


@st.composite
def runners(draw: st.DrawFn) -> ChecksumRunner:
    seqs = draw(st.integers(1, 6))
    return build_runner(
        num_blocks=draw(st.integers(2, 14)),
        block_size=draw(st.integers(1, 5)),
        max_model_len=draw(st.integers(2, 48)),
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs, seqs + 12)),
        num_scheduler_steps=draw(st.sampled_from([1, 1, 2, 4, 8])),
        async_scheduling=draw(st.booleans()),
    )


@st.composite
def workloads(draw: st.DrawFn, with_aborts: bool) -> Workload:
    runner = draw(runners())
    prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=runner.info.max_prompt_len)
    count = draw(st.integers(1, 8))
    # Ids repeat between the two clients, never within one.
    requests = tuple(Request(f"r{i // 2}", draw(prompts), draw(params()), client=i % 2) for i in range(count))
    moments = st.tuples(st.integers(0, 30), st.booleans())
    arrivals = [Timed(*draw(moments), request) for request in requests]
    aborted = draw(st.lists(st.sampled_from(requests))) if with_aborts else []
    aborts = [Timed(*draw(moments), Abort((request.id,), request.client)) for request in aborted]
    return Workload(runner, requests, tuple(sorted([*arrivals, *aborts], key=lambda timed: (timed.step, timed.in_flight))))


def play(work: Workload) -> tuple[EngineCore, Inbox]:
    core, inbox = build_core(work.runner), Inbox()
    last = max(timed.step for timed in work.commands)
    for moment in range(4_000):
        if moment > last and not core.has_work:
            return core, inbox
        due = [timed for timed in work.commands if timed.step == moment]
        deliver(core, inbox, [timed for timed in due if not timed.in_flight])
        if not core.has_work:
            deliver(core, inbox, due, in_flight_only=True)
            continue
        flight = core.begin()
        deliver(core, inbox, due, in_flight_only=True)
        inbox.take(core.finish(flight.wait()))
        assert stats_of(core).blocks_used >= work.runner.blocks_in_flight
    raise AssertionError("something starves")


def deliver(core: EngineCore, inbox: Inbox, due: list[Timed], in_flight_only: bool = False) -> None:
    for timed in due:
        if timed.in_flight or not in_flight_only:
            inbox.take(apply(core, timed.command))


def stats_of(core: EngineCore) -> EngineStats:
    return core.calls["stats"]()


def assert_all_given_back(core: EngineCore) -> None:
    stats = stats_of(core)
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert not core.has_work


@settings(deadline=None, max_examples=150)
@given(workloads(with_aborts=False))
def test_every_answer_is_the_solo_answer(work: Workload) -> None:
    core, inbox = play(work)
    for request in work.requests:
        assert inbox.answers[request.client, request.id] == solo(request, work.room)
    assert_all_given_back(core)


@settings(deadline=None, max_examples=150)
@given(workloads(with_aborts=False))
def test_counters_count_each_token_once(work: Workload) -> None:
    core, inbox = play(work)
    stats = stats_of(core)
    assert stats.prompt_tokens == sum(len(request.prompt) for request in work.requests)
    assert stats.generation_tokens == sum(len(answer.tokens) for answer in inbox.answers.values())
    assert sum(stats.finished.values()) == len(work.requests)
    assert stats.steps == len(work.runner.plans)


@settings(deadline=None, max_examples=150)
@given(workloads(with_aborts=True))
def test_aborts_harm_nobody_else(work: Workload) -> None:
    core, inbox = play(work)
    aborted = {(timed.command.client, id) for timed in work.commands if isinstance(timed.command, Abort) for id in timed.command.ids}
    for request in work.requests:
        key = request.client, request.id
        whole = solo(request, work.room)
        assert inbox.answers[key] == whole or (key in aborted and is_cut(inbox.answers[key], whole))
    assert_all_given_back(core)


def is_cut(answer: Answer, whole: Answer) -> bool:
    return answer.finish == "abort" and answer.tokens == whole.tokens[: len(answer.tokens)]


@settings(deadline=None, max_examples=100)
@given(runners(), st.data())
def test_first_come_first_served(runner: ChecksumRunner, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, runner.info.max_prompt_len), min_size=2, max_size=8))
    core = build_core(runner)
    for i, length in enumerate(lengths):
        core.add(Request(f"{i}", [EOS + 1] * length, SamplingParams(max_tokens=6, seed=i)))
    drain(core)
    firsts = [int(chunk.id) for plan in runner.plans for chunk in plan.sampling if chunk.output_index == 0]
    assert firsts == list(range(len(lengths)))
