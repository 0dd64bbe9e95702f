"""Whatever the workload, the pool, the budgets and the aborts: right answers, and everything given back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from checksum import EOS, VOCAB, Answer, ChecksumRunner, Inbox, build_core, build_runner, drain, pooled_state, scores, solo
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlab.engine.core import apply
from mqlab.engine.engine_core import EngineCore
from mqlab.types import Abort, Call, EngineStats, Pooling, Request, SamplingParams

RESET = Call(1, "reset_prefix_cache", client=9)


@dataclass(frozen=True)
class Timed:
    """A command, the step it comes with, and whether it comes while that step is on the device."""

    step: int
    in_flight: bool
    command: Request | Abort | Call


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
    max_tokens = draw(st.none() | st.integers(0, 24))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, 12 if max_tokens is None else max_tokens)),
        stop_token_ids=tuple(draw(st.lists(st.integers(0, VOCAB - 1), max_size=2))),
        ignore_eos=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
        # Either makes it steer.
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.1])),
        bad_word_ids=tuple(draw(st.lists(st.tuples(st.integers(3, 5), st.integers(3, 5)), max_size=1))),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0])),
    )


@st.composite
def runners(draw: st.DrawFn, **fixed: Any) -> ChecksumRunner:
    seqs = draw(st.integers(1, 6))
    config = {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": draw(st.integers(seqs, seqs + 12)),
        "num_scheduler_steps": draw(st.sampled_from([1, 1, 2, 4, 8])),
        "async_scheduling": draw(st.booleans()),
        "multi_step_stream_outputs": draw(st.booleans()),
        "enable_prefix_caching": draw(st.sampled_from([True, True, True, False])),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "num_speculative_tokens": draw(st.sampled_from([0, 0, 1, 3])),
        "prompt_lookup_min": 1,
    }
    return build_runner(
        num_blocks=draw(st.integers(2, 14)),
        block_size=draw(st.integers(1, 5)),
        max_model_len=draw(st.integers(2, 48)),
        **{**config, **fixed},
    )


@st.composite
def prompts(draw: st.DrawFn, longest: int) -> list[int]:
    """Token ids that begin as those of others do."""
    common = [3, 4, 5, 3, 4, 5, 7] * 7
    shared = draw(st.integers(0, longest))
    return common[:shared] + draw(st.lists(st.integers(0, VOCAB - 1), min_size=not shared, max_size=longest - shared))


@st.composite
def workloads(draw: st.DrawFn, with_aborts: bool) -> Workload:
    runner = draw(runners())
    # Ids repeat between the two clients, never within one. Requests of one id have one salt.
    requests = tuple(
        Request(
            f"r{i // 2}",
            draw(prompts(runner.info.max_prompt_len)),
            draw(params()),
            client=i % 2,
            priority=draw(st.integers(-1, 1)),
            salt="ab"[i // 2 % 2],
            pooling=draw(st.sampled_from([None] * 6 + [Pooling(kind, normalize=False) for kind in ("mean", "last", "cls")])),
        )
        for i in range(draw(st.integers(1, 8)))
    )
    moments = st.tuples(st.integers(0, 30), st.booleans())
    arrivals = [Timed(*draw(moments), request) for request in requests]
    aborted = draw(st.lists(st.sampled_from(requests))) if with_aborts else []
    others = [Abort((request.id,), request.client) for request in aborted] + draw(st.lists(st.just(RESET), max_size=2))
    commands = [*arrivals, *[Timed(*draw(moments), command) for command in others]]
    return Workload(runner, requests, tuple(sorted(commands, key=lambda timed: (timed.step, timed.in_flight))))


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
    assert stats.prefix_hits <= stats.prefix_queries and stats.accepted <= stats.drafted
    assert not core.has_work


def assert_prompts_are_told(inbox: Inbox, request: Request) -> None:
    """Logprobs and embedding of a request's prompt, where asked for."""
    key, prompt = (request.client, request.id), list(request.prompt)
    if request.params.prompt_logprobs is not None:
        assert inbox.scores.get(key, []) == scores(prompt)
    if request.pooling is not None:
        mean = len(prompt) if request.pooling.kind == "mean" else 1
        assert inbox.embeddings[key] == pytest.approx([pooled_state(prompt, request.pooling.kind) / mean])


@settings(deadline=None, max_examples=150)
@given(workloads(with_aborts=False))
def test_every_answer_is_the_solo_answer(work: Workload) -> None:
    core, inbox = play(work)
    for request in work.requests:
        assert inbox.answers[request.client, request.id] == solo(request, work.room)
        assert_prompts_are_told(inbox, request)
    assert all(reply.value is True for reply in inbox.replies)
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
    salts = {request.id: request.salt for request in work.requests}
    assert all(salts[reader] == salts[writer] for reader, writer in work.runner.readings), "who has another salt shares nothing"
    aborted = {(timed.command.client, id) for timed in work.commands if isinstance(timed.command, Abort) for id in timed.command.ids}
    for request in work.requests:
        key = request.client, request.id
        whole = solo(request, work.room)
        assert inbox.answers[key] == whole or (key in aborted and is_cut(inbox.answers[key], whole))
    assert_all_given_back(core)


def is_cut(answer: Answer, whole: Answer) -> bool:
    return answer.finish == "abort" and answer.tokens == whole.tokens[: len(answer.tokens)]


@settings(deadline=None, max_examples=100)
@given(runners(scheduling_policy="fcfs"), st.data())
def test_first_come_first_served(runner: ChecksumRunner, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, runner.info.max_prompt_len), min_size=2, max_size=8))
    core = build_core(runner)
    for i, length in enumerate(lengths):
        core.add(Request(f"{i}", [EOS + 1] * length, SamplingParams(max_tokens=6, seed=i)))
    drain(core)
    firsts = {int(chunk.id): number for number, plan in enumerate(runner.plans) for chunk in plan.sampling if chunk.output_index == 0}
    assert [firsts[i] for i in range(len(lengths))] == sorted(firsts.values())
