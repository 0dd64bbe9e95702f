"""What a core tells of each request's cost, and of its steps' tokens."""

from __future__ import annotations

from typing import Any

import pytest
from checksum import build_runner

from mqlab.clock import ManualClock
from mqlab.engine.core import apply, step
from mqlab.engine.echo import EchoCore, EchoSetup
from mqlab.engine.engine_core import EngineCore
from mqlab.engine.iterations import BOUNDS
from mqlab.types import Abort, Call, Delta, EngineStats, Reply, Request, RequestStats, SamplingParams, Step

MS = 1_000_000


class Timed:
    """A core whose every step takes a second."""

    def __init__(self, **config: Any) -> None:
        runner = build_runner(**config)
        self.clock = ManualClock(5)
        self.core = EngineCore(runner, runner.config, self.clock)
        self.deltas: list[Delta] = []

    def ask(self, id: str, prompt: list[int], max_tokens: int = 3, **params: Any) -> None:
        own = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=1, **params)
        assert not apply(self.core, Request(id, prompt, own))

    def step(self, seconds: float = 1.0) -> None:
        flight = self.core.begin()
        self.clock.advance(round(seconds * 1e9))
        for event in self.core.finish(flight.wait()):
            assert isinstance(event, Step)
            self.deltas += event.deltas

    def run(self) -> None:
        while self.core.has_work:
            self.step()

    def last(self, id: str) -> RequestStats:
        (found,) = [delta.stats for delta in self.deltas if delta.id == id and delta.finish is not None]
        assert found is not None
        return found

    @property
    def stats(self) -> EngineStats:
        return self.core.calls["stats"]()


def test_waiting_prefill_and_decoding_are_told_apart() -> None:
    engine = Timed(max_num_seqs=1, max_num_batched_tokens=4)
    engine.ask("first", [3, 4, 5], max_tokens=2)
    engine.clock.advance(500 * MS)
    engine.ask("second", [6, 7, 8, 9, 10, 11], max_tokens=3)
    engine.run()
    # A prompt of 6 takes two steps of 4 tokens.
    assert engine.last("first") == RequestStats(0.5, 1.0, 1.0, 0, 0, 3)
    assert engine.last("second") == RequestStats(2.0, 2.0, 2.0, 0, 0, 6)


def test_the_first_tokens_bring_what_the_prompt_has_cost() -> None:
    engine = Timed()
    engine.ask("r", [3, 4, 5])
    engine.run()
    told = [delta.stats for delta in engine.deltas]
    assert told == [RequestStats(0.0, 1.0, 0.0, 0, 0, 3), None, RequestStats(0.0, 1.0, 2.0, 0, 0, 3)]


def test_what_the_prefix_cache_had_is_told_and_counted() -> None:
    engine = Timed(block_size=4)
    prompt = [*range(3, 13)]
    for id in ("cold", "warm"):
        engine.ask(id, prompt)
        engine.run()
    assert (engine.last("cold").cached_tokens, engine.last("warm").cached_tokens) == (0, 8)
    stats = engine.stats
    assert (stats.prompt_tokens, stats.cached_tokens, stats.prefix_hits) == (20, 8, 8)
    assert stats.iteration_tokens_sum == 10 + 2 + (10 - 8) + 2


def test_a_preempted_request_says_so_and_keeps_its_times() -> None:
    engine = Timed(num_blocks=6, block_size=4, enable_prefix_caching=False)
    engine.ask("old", [3, 4, 5, 6, 7, 8], max_tokens=12)
    engine.ask("young", [9, 10, 11, 12, 13, 14], max_tokens=12)
    engine.run()
    assert engine.last("old") == RequestStats(0.0, 1.0, 11.0, 0, 0, 6)
    young = engine.last("young")
    assert young.preemptions == engine.stats.preemptions > 0
    assert (young.queued_s, young.prefill_s) == (0.0, 1.0)
    assert young.decode_s > 11.0


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_whoever_is_aborted_has_a_cost_too(steps: int) -> None:
    engine = Timed(max_num_seqs=1, max_num_batched_tokens=4)
    engine.ask("r", [*range(3, 11)], max_tokens=9)
    for _ in range(steps):
        engine.step()
    engine.clock.advance(250 * MS)
    (event,) = apply(engine.core, Abort(("r",)))
    assert isinstance(event, Step)
    wanted = [(0.25, 0.0, 0.0), (0.0, 1.25, 0.0), (0.0, 2.0, 0.25)][steps]
    (delta,) = event.deltas
    assert delta.stats is not None
    assert (delta.stats.queued_s, delta.stats.prefill_s, delta.stats.decode_s) == wanted


def test_a_scored_prompt_costs_its_prefill() -> None:
    engine = Timed()
    engine.ask("r", [3, 4, 5], max_tokens=0)
    engine.run()
    assert engine.last("r") == RequestStats(0.0, 1.0, 0.0, 0, 0, 3)
    assert engine.stats.prompt_tokens == 3


def test_steps_are_counted_by_their_tokens() -> None:
    engine = Timed(max_num_batched_tokens=16)
    engine.ask("r", [*range(3, 23)], max_tokens=3)
    engine.run()
    stats = engine.stats
    assert dict(zip((*BOUNDS, "more"), stats.iteration_tokens, strict=True)) == {**dict.fromkeys(BOUNDS, 0), "more": 0, 16: 1, 8: 1, 1: 2}
    assert stats.iteration_tokens_sum == 16 + 4 + 1 + 1


def test_rounds_of_a_step_count_each() -> None:
    engine = Timed(num_scheduler_steps=4)
    engine.ask("r", [3, 4], max_tokens=9)
    engine.run()
    assert engine.stats.iteration_tokens_sum == 2 + 8
    assert engine.last("r").prompt_tokens == 2


def test_guesses_are_counted_by_place_and_outlive_a_model() -> None:
    engine = Timed(num_speculative_tokens=3, prompt_lookup_min=1, max_num_batched_tokens=32)
    engine.ask("r", [3, 4, 5, 3, 4, 5], max_tokens=40)
    engine.run()
    before = engine.stats
    assert 0 < before.drafts <= before.drafted <= 3 * before.drafts
    assert sum(before.accepted_at) == before.accepted > 0
    assert list(before.accepted_at) == sorted(before.accepted_at, reverse=True)
    assert before.accepted_at[0] <= before.drafts
    for level in (1, 2):
        engine.core.call(Call(1, "sleep", (level,)))
        assert (engine.core.info.state, engine.core.info.sleep_level) == ("asleep", level)
    assert engine.stats.accepted_at == before.accepted_at
    assert engine.stats.drafts == before.drafts


def test_an_echo_tells_the_same_things() -> None:
    core = EchoCore(EchoSetup(cached_tokens=5), ManualClock())
    apply(core, Request("r", [3, 4, 5], SamplingParams(max_tokens=2)))
    deltas = [delta for _ in range(2) for event in step(core) if isinstance(event, Step) for delta in event.deltas]
    assert [delta.stats for delta in deltas] == [RequestStats(0.0, 0.0, 0.0, 2, 0, 3)] * 2
    (reply,) = core.call(Call(1, "stats"))
    assert isinstance(reply, Reply)
    assert (reply.value.cached_tokens, reply.value.iteration_tokens_sum) == (2, 2)
