"""The prefix cache: what has been computed is not computed again, and nobody can tell by the answers."""

from __future__ import annotations

from typing import Any

import pytest
from checksum import VOCAB, ChecksumRunner, Inbox, build_core, build_runner, drain, pooled_state, scores, solo

from mqlab.engine.core import step
from mqlab.engine.engine_core import EngineCore
from mqlab.types import Call, EngineStats, Pooling, Reply, Request, SamplingParams

SIZE = 4
ROOM = 128


def prompt(length: int, parts_at: int | None = None) -> list[int]:
    """All alike up to ``parts_at``."""
    ids = [(3 + 5 * i) % VOCAB for i in range(length)]
    return ids if parts_at is None else ids[:parts_at] + [(i + 1) % VOCAB for i in ids[parts_at:]]


def ask(id: str, ids: list[int], max_tokens: int = 5, **more: Any) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=3, prompt_logprobs=more.pop("prompt_logprobs", None))
    return Request(id, ids, params, **more)


def started(**config: Any) -> tuple[ChecksumRunner, EngineCore]:
    runner = build_runner(block_size=SIZE, **{"max_num_batched_tokens": 64, **config})
    return runner, build_core(runner)


def run(core: EngineCore, *requests: Request) -> Inbox:
    for request in requests:
        core.add(request)
    inbox = drain(core)
    for request in requests:
        assert inbox.answers[request.client, request.id] == solo(request, ROOM)
    return inbox


def first_starts(runner: ChecksumRunner) -> dict[str, int]:
    """Where the first chunk of each request starts: tokens that it found."""
    return {chunk.id: chunk.start for plan in reversed(runner.plans) for chunk in reversed(plan.chunks)}


def stats_of(core: EngineCore) -> EngineStats:
    return core.calls["stats"]()


def reset(core: EngineCore) -> None:
    (reply,) = core.call(Call(1, "reset_prefix_cache"))
    assert isinstance(reply, Reply) and reply.value is True


@pytest.mark.parametrize(("length", "found"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (23, 20)])
def test_a_prompt_that_is_known_runs_at_least_its_last_token(length: int, found: int) -> None:
    runner, core = started()
    run(core, ask("first", prompt(length)))
    run(core, ask("again", prompt(length)))
    assert first_starts(runner) == {"first": 0, "again": found}
    stats = stats_of(core)
    assert (stats.prefix_queries, stats.prefix_hits, stats.prompt_tokens) == (2 * length, found, 2 * length)


@pytest.mark.parametrize("budget", [8, 16, 64])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("blocks", [64, 14])
def test_prompts_that_part_inside_a_block_at_its_edge_and_behind_it(blocks: int, at_once: bool, budget: int) -> None:
    _, core = started(num_blocks=blocks, max_num_batched_tokens=budget)
    requests = [ask(f"{parts_at}", prompt(21, parts_at)) for parts_at in (0, 6, 7, 8, 9, 15, 16, 17, 20, 21)]
    for _ in range(2):
        for group in [requests] if at_once else [[request] for request in requests]:
            run(core, *group)
    assert stats_of(core).prefix_hits > 0


def test_choices_of_one_prompt_compute_it_once() -> None:
    runner, core = started()
    run(core, *[ask(f"c{i}", prompt(18)) for i in range(4)])
    assert [len(chunk.tokens) for chunk in runner.plans[0].chunks] == [18, 2, 2, 2]
    assert len({chunk.blocks[:4] for chunk in runner.plans[0].chunks}) == 1


def test_a_step_that_runs_ahead_finds_what_the_one_in_flight_writes() -> None:
    runner, core = started(async_scheduling=True, max_num_batched_tokens=18, max_num_seqs=4)
    run(core, *[ask(f"c{i}", prompt(18)) for i in range(3)])
    assert first_starts(runner) == {"c0": 0, "c1": 16, "c2": 16}
    assert runner.log.index(("launch", 1)) < runner.log.index(("wait", 0))


def test_another_salt_shares_nothing() -> None:
    runner, core = started()
    run(core, ask("plain", prompt(18)), ask("salted", prompt(18), salt="x"), ask("other", prompt(18), salt="y"))
    run(core, ask("again", prompt(18), salt="x"))
    assert first_starts(runner) == {"plain": 0, "salted": 0, "other": 0, "again": 16}
    assert {pair for pair in runner.readings if pair[0] != pair[1]} == {("again", "salted")}


def test_turned_off_it_finds_nothing() -> None:
    runner, core = started(enable_prefix_caching=False)
    for id in "ab":
        run(core, ask(id, prompt(18)))
    assert first_starts(runner) == {"a": 0, "b": 0}
    assert (stats_of(core).prefix_queries, stats_of(core).prefix_hits) == (0, 0)


@pytest.mark.parametrize("config", [{}, {"async_scheduling": True}, {"num_scheduler_steps": 4}, {"num_speculative_tokens": 3}])
def test_an_answer_is_known_when_the_talk_goes_on(config: dict[str, Any]) -> None:
    runner, core = started(**config)
    first = ask("first", prompt(6), max_tokens=15)
    answer = run(core, first).answers[0, "first"].tokens
    run(core, ask("next", [*first.prompt, *answer, 7, 8]))
    # The last token of an answer is never run.
    assert first_starts(runner)["next"] == 20


def test_a_reset_forgets_all_and_disturbs_nobody() -> None:
    runner, core = started()
    core.add(ask("runs", prompt(18), max_tokens=20))
    step(core)
    used = stats_of(core).blocks_used
    flight = core.begin()
    assert core.call(Call(1, "reset_prefix_cache")) == []
    inbox = Inbox()
    inbox.take(core.finish(flight.wait()))
    assert [reply.value for reply in inbox.replies] == [True]
    assert stats_of(core).blocks_used == used
    core.add(ask("cold", prompt(18)))
    drain(core, inbox)
    run(core, ask("warm", prompt(18)))
    reset(core)
    run(core, ask("cold again", prompt(18)))
    assert first_starts(runner) == {"runs": 0, "cold": 0, "warm": 16, "cold again": 0}
    assert stats_of(core).blocks_used == 0


def test_what_is_only_remembered_counts_as_free() -> None:
    _, core = started(num_blocks=8)
    for i in range(6):
        run(core, ask(f"r{i}", prompt(20, parts_at=i)))
        assert stats_of(core).blocks_used == 0


def test_the_oldest_is_forgotten_first_from_its_end() -> None:
    runner, core = started(num_blocks=12)
    run(core, ask("old", prompt(17), max_tokens=1))
    run(core, ask("new", prompt(17, parts_at=0), max_tokens=1))
    # 5 of the 12 blocks are left without a name or never used; this one takes two more.
    run(core, ask("big", [7] * 22, max_tokens=1))
    run(core, ask("new again", prompt(17, parts_at=0), max_tokens=1), ask("old again", prompt(17), max_tokens=1))
    assert first_starts(runner) == {"old": 0, "new": 0, "big": 0, "old again": 8, "new again": 16}


def test_who_was_preempted_finds_what_he_had() -> None:
    runner = build_runner(num_blocks=8, block_size=2, max_model_len=14)
    core = build_core(runner)
    requests = [ask(f"r{i}", prompt(5, parts_at=i), max_tokens=7) for i in range(3)]
    run(core, *requests)
    stats = stats_of(core)
    assert stats.preemptions > 0
    assert stats.prefix_queries == 15, "a prompt is looked up in the statistics once"
    again = [chunk.start for plan in runner.plans for chunk in plan.chunks if len(chunk.tokens) > 1 and chunk.output_index]
    assert any(again), "a recomputation that begins behind what the cache had"


@pytest.mark.parametrize("ahead", [False, True])
def test_an_abort_in_flight_leaves_true_names(ahead: bool) -> None:
    runner, core = started(async_scheduling=ahead, max_num_batched_tokens=8)
    core.add(ask("gone", prompt(30)))
    inbox = Inbox()
    for _ in range(2):
        inbox.take(step(core))
    flight = core.begin()
    core.abort(("gone",))
    inbox.take(core.finish(flight.wait()))
    run(core, ask("again", prompt(30)))
    assert first_starts(runner)["again"] >= 16
    assert stats_of(core).blocks_used == 0


@pytest.mark.parametrize("config", [{}, {"max_num_batched_tokens": 8}, {"num_blocks": 13, "max_model_len": 52}])
def test_logprobs_of_a_prompt_are_whole_when_it_is_cached_chunked_or_preempted(config: dict[str, Any]) -> None:
    runner, core = started(**config)
    for round in range(2):
        requests = [ask(f"{round}{i}", prompt(17, parts_at=i), max_tokens=12, prompt_logprobs=0) for i in (12, 17)]
        inbox = run(core, *requests)
        for request in requests:
            assert inbox.scores[0, request.id] == scores(list(request.prompt))
    assert (stats_of(core).prefix_queries, stats_of(core).prefix_hits) == (0, 0)
    assert (stats_of(core).preemptions > 0) == ("num_blocks" in config)
    run(core, ask("plain", prompt(17)))
    assert first_starts(runner)["plain"] == 16, "who does not read the cache fills it"


@pytest.mark.parametrize(("kind", "found"), [("mean", 0), ("cls", 0), ("last", 16)])
@pytest.mark.parametrize("budget", [8, 64])
def test_an_embedding_reads_the_cache_only_where_it_needs_no_more_than_the_end(kind: Any, found: int, budget: int) -> None:
    runner, core = started(max_num_batched_tokens=budget)
    run(core, ask("first", prompt(18)))
    inbox = run(core, ask("vector", prompt(18), pooling=Pooling(kind, normalize=False)))
    assert inbox.embeddings[0, "vector"] == pytest.approx([pooled_state(prompt(18), kind) / (18 if kind == "mean" else 1)])
    assert first_starts(runner)["vector"] == found
