"""The engine with a runner that answers right only when scheduled right: limits, preemption, refusals, failures."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from checksum import EOS, VOCAB, Answer, ChecksumFlight, ChecksumRunner, build_core, build_runner, drain, pooled_state, scores, solo

from mqlab.clock import ManualClock
from mqlab.engine.core import apply, step
from mqlab.engine.engine_core import build
from mqlab.errors import InvalidRequest
from mqlab.plan import Plan, SampledTokens
from mqlab.types import Pooling, Request, SamplingParams, Step
from mqlab.wire.spec import Spec

LONG = SamplingParams(max_tokens=None, ignore_eos=True, seed=1)


def prompt(length: int, start: int = 3) -> list[int]:
    return [(start + i) % VOCAB for i in range(length)]


def answer_of(runner: ChecksumRunner, request: Request) -> Answer:
    core = build_core(runner)
    core.add(request)
    return drain(core).answers[request.client, request.id]


@pytest.mark.parametrize("ahead", [False, True])
def test_preempted_requests_answer_as_if_alone(ahead: bool) -> None:
    # A pool for 2.5 of the 6 sequences of 300 tokens.
    runner = build_runner(num_blocks=47, block_size=16, max_model_len=400, max_num_batched_tokens=128, async_scheduling=ahead)
    core = build_core(runner)
    params = [SamplingParams(max_tokens=150, ignore_eos=True, seed=i) for i in range(6)]
    requests = [Request(f"r{i}", prompt(150, i), params[i]) for i in range(6)]
    for request in requests:
        core.add(request)
    inbox = drain(core)
    for request in requests:
        got = inbox.answers[0, request.id]
        assert len(got.tokens) == 150
        assert got == solo(request, 400)
    stats = core.calls["stats"]()
    assert stats.preemptions > 0
    assert (stats.prompt_tokens, stats.generation_tokens, stats.finished["length"]) == (900, 900, 6)
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


def test_the_latest_arrival_is_preempted_and_resumes_first() -> None:
    runner = build_runner(num_blocks=6, block_size=2, max_model_len=12)
    core = build_core(runner)
    for i in range(4):
        core.add(Request(f"r{i}", prompt(3, i), SamplingParams(max_tokens=4, ignore_eos=True, seed=i)))
    drain(core)
    assert core.calls["stats"]().preemptions > 0
    # Each request's first chunk, and after a preemption its recomputation, starts at 0.
    starts = [chunk.id for plan in runner.plans for chunk in plan.chunks if chunk.start == 0]
    assert starts == ["r0", "r1", "r2", "r2", "r3"]
    resumed = [chunk for plan in runner.plans for chunk in plan.chunks if chunk.id == "r2" and chunk.start == 0][1]
    assert (len(resumed.tokens), resumed.output_index, resumed.samples) == (3 + resumed.output_index, resumed.output_index, True)
    assert resumed.output_index > 0


@pytest.mark.parametrize("budget", [9, 24])
@pytest.mark.parametrize("prompt_logprobs", [None, 0])
def test_an_embedding_that_is_preempted_in_mid_prompt_begins_anew(budget: int, prompt_logprobs: int | None) -> None:
    runner = build_runner(num_blocks=8, block_size=4, max_num_batched_tokens=budget)
    core = build_core(runner)
    core.add(Request("text", prompt(8), SamplingParams(max_tokens=4, ignore_eos=True)))
    params = SamplingParams(prompt_logprobs=prompt_logprobs)
    core.add(Request("vector", prompt(23, 9), params, pooling=Pooling("mean", normalize=False)))
    inbox = drain(core)
    assert core.calls["stats"]().preemptions == 1
    assert inbox.embeddings[0, "vector"] == pytest.approx([pooled_state(prompt(23, 9), "mean") / 23])
    assert inbox.scores.get((0, "vector")) == (None if prompt_logprobs is None else scores(prompt(23, 9)))


def test_a_long_prompt_is_prefilled_in_chunks_beside_decodes() -> None:
    runner = build_runner(max_num_batched_tokens=8)
    core = build_core(runner)
    core.add(Request("short", prompt(2), SamplingParams(max_tokens=9, ignore_eos=True)))
    step(core)
    core.add(Request("long", prompt(30), SamplingParams(max_tokens=1)))
    drain(core)
    long = [chunk for plan in runner.plans for chunk in plan.chunks if chunk.id == "long"]
    assert [(chunk.start, len(chunk.tokens), chunk.samples) for chunk in long] == [
        (0, 7, False),
        (7, 7, False),
        (14, 7, False),
        (21, 7, False),
        (28, 2, True),
    ]
    assert all(plan.chunks[0].id == "short" for plan in runner.plans[:9])


@pytest.mark.parametrize("max_tokens", [None, 1, 2, 20])
@pytest.mark.parametrize("length", [18, 19])
def test_what_fits_in_the_context_runs_to_its_end(length: int, max_tokens: int | None) -> None:
    request = Request("r", prompt(length), SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=1))
    got = answer_of(build_runner(max_model_len=20), request)
    assert got.finish == "length"
    assert len(got.tokens) == min(max_tokens or 20, 20 - length)
    longer = answer_of(build_runner(max_model_len=40), Request("r", prompt(length), LONG))
    assert got.tokens == longer.tokens[: len(got.tokens)]


@pytest.mark.parametrize("length", [20, 21, 500])
def test_what_leaves_no_room_in_the_context_is_refused(length: int) -> None:
    core = build_core(build_runner(max_model_len=20))
    with pytest.raises(InvalidRequest, match=rf"prompt has {length} tokens; at most 19 fit.*context holds 20.*--max-model-len"):
        core.add(Request("r", prompt(length), LONG))
    assert not core.has_work


@pytest.mark.parametrize("length", [16, 19])
def test_a_prompt_that_the_pool_just_holds_ends_at_the_pools_end(length: int) -> None:
    request = Request("r", prompt(length), LONG)
    got = answer_of(build_runner(num_blocks=5, block_size=4, max_model_len=40), request)
    assert got.finish == "length"
    assert got == solo(request, 20)


@pytest.mark.parametrize("length", [20, 21, 24, 39])
def test_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody(length: int) -> None:
    core = build_core(build_runner(num_blocks=5, block_size=4, max_model_len=40))
    refused = apply(core, Request("big", prompt(length), LONG))
    assert isinstance(refused[0], Step)
    delta = refused[0].deltas[0]
    assert delta.finish == "error"
    assert delta.error is not None
    assert delta.error.kind == "invalid"
    for part in (f"{length} tokens", "at most 19", "20 (5 blocks of 4)", "--num-kv-blocks"):
        assert part in delta.error.message
    small = [Request(f"s{i}", prompt(3, i), SamplingParams(max_tokens=4, seed=i)) for i in range(3)]
    for request in small:
        core.add(request)
    inbox = drain(core)
    assert [inbox.answers[0, request.id] for request in small] == [solo(request, 20) for request in small]


def test_the_prompt_limit_of_the_info_is_kept() -> None:
    runner = build_runner(max_model_len=20)
    runner.info = type(runner.info)(name="tight", vocab_size=VOCAB, max_model_len=20, max_prompt_len=7, num_blocks=9, block_size=4)
    core = build_core(runner)
    with pytest.raises(InvalidRequest, match="8 tokens; at most 7"):
        core.add(Request("r", prompt(8), LONG))
    core.add(Request("r", prompt(7), LONG))
    assert len(drain(core).answers[0, "r"].tokens) == 13


def test_banned_tokens_cover_end_and_stop_ids_below_min_tokens() -> None:
    runner = build_runner()
    core = build_core(runner)
    core.add(Request("r", prompt(3), SamplingParams(max_tokens=5, min_tokens=2, stop_token_ids=(7, 8), ignore_eos=True)))
    drain(core)
    assert [chunk.banned for plan in runner.plans for chunk in plan.chunks][:3] == [(EOS, 7, 8), (EOS, 7, 8), ()]


def seeds_of(config_seed: int, *params: SamplingParams) -> list[int]:
    runner = build_runner(seed=config_seed)
    core = build_core(runner)
    for i, one in enumerate(params):
        core.add(Request(f"r{i}", prompt(3), one))
    core.begin()
    return [chunk.seed for chunk in runner.plans[0].chunks]


def test_seeds_are_the_requests_own_or_derived() -> None:
    own = [SamplingParams(seed=seed) for seed in (0, 5, 2**63 - 1, -1, -(2**63))]
    assert seeds_of(0, *own) == seeds_of(9, *own) == [0, 5, 2**63 - 1, 2**63 - 1, 0]
    none = [SamplingParams()] * 5
    assert seeds_of(0, *none) == seeds_of(0, *none) != seeds_of(1, *none)
    assert len(set(seeds_of(0, *none))) == 5
    assert all(0 <= seed < 2**63 for seed in seeds_of(0, *none))


def test_a_refused_request_does_not_shift_the_seeds_of_others() -> None:
    runner = build_runner()
    core = build_core(runner)
    apply(core, Request("empty", [], SamplingParams()))
    core.add(Request("r", prompt(3), SamplingParams()))
    core.begin()
    assert runner.plans[0].chunks[0].seed == seeds_of(0, SamplingParams())[0]


def test_blocks_of_an_abort_in_flight_are_freed_by_finish() -> None:
    core = build_core(build_runner())
    core.add(Request("r", prompt(6), LONG))
    flight = core.begin()
    assert core.abort(("r",)) == []
    assert core.calls["stats"]().blocks_used == 2
    core.finish(flight.wait())
    assert core.calls["stats"]().blocks_used == 0


def test_an_abort_takes_a_preempted_request_out_of_the_queue() -> None:
    core = build_core(build_runner(num_blocks=4, block_size=2, max_model_len=8))
    for i in range(2):
        core.add(Request(f"r{i}", prompt(3, i), LONG))
    for _ in range(200):
        if core.calls["stats"]().preemptions:
            break
        step(core)
    assert core.calls["stats"]().waiting == 1
    assert [delta.finish for delta in core.abort(("r1",))] == ["abort"]
    inbox = drain(core)
    assert set(inbox.answers) == {(0, "r0")}
    assert core.calls["stats"]().blocks_used == 0


@dataclass
class BrokenFlight(ChecksumFlight):
    def wait(self) -> SampledTokens:
        raise RuntimeError("device lost")


class BrokenRunner(ChecksumRunner):
    def launch(self, plan: Plan) -> BrokenFlight:
        return BrokenFlight(self, plan)


def test_a_runner_that_fails_is_fatal() -> None:
    whole = build_runner()
    core = build_core(BrokenRunner(whole.info, whole.config))
    core.add(Request("r", prompt(3), LONG))
    with pytest.raises(RuntimeError, match="device lost"):
        step(core)


def test_a_runner_that_returns_too_few_tokens_is_fatal() -> None:
    core = build_core(build_runner())
    core.add(Request("r", prompt(3), LONG))
    core.begin()
    with pytest.raises(ValueError, match="shorter"):
        core.finish(SampledTokens(()))


def test_close_closes_the_runner_once() -> None:
    runner = build_runner()
    core = build_core(runner)
    core.close()
    core.close()
    assert runner.closed == 1


def test_build_takes_a_spec_of_a_runner() -> None:
    runner = build_runner()
    core = build(config=runner.config, runner=Spec("checksum:build_runner", {"num_blocks": 5, "block_size": 4}))
    assert (core.info.num_blocks, core.info.max_prompt_len) == (5, 19)
    core.add(Request("r", prompt(3), SamplingParams(max_tokens=2)))
    assert len(drain(core).answers[0, "r"].tokens) == 2


def test_stats_are_stamped_by_the_injected_clock() -> None:
    runner = build_runner()
    core = type(build_core(runner))(runner, runner.config, ManualClock(123))
    assert core.calls["stats"]().stamp_ns == 123
