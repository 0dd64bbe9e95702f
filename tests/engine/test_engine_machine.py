"""The scheduler alone, step by step: whatever comes when, each block is counted once for each who holds it, and all get done."""

from __future__ import annotations

from collections import deque
from typing import Any

from checksum import EOS, VOCAB, ChecksumFlight, build_runner, next_token
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqlab.engine.scheduler import Scheduler
from mqlab.engine.sequence import Sequence
from mqlab.types import SamplingParams

ROOM = 24


class Engine(RuleBasedStateMachine):
    """Does for a scheduler what a core's desk does, and looks at the sequences meanwhile."""

    @initialize(
        steps=st.sampled_from([1, 3]),
        ahead=st.booleans(),
        caching=st.booleans(),
        policy=st.sampled_from(["fcfs", "priority"]),
        guesses=st.sampled_from([0, 2]),
        blocks=st.integers(6, 16),
    )
    def start(self, steps: int, ahead: bool, caching: bool, policy: Any, guesses: int, blocks: int) -> None:
        self.runner = build_runner(
            num_blocks=blocks,
            block_size=4,
            max_model_len=ROOM,
            max_num_seqs=3,
            max_num_batched_tokens=9,
            num_scheduler_steps=steps,
            async_scheduling=ahead,
            enable_prefix_caching=caching,
            scheduling_policy=policy,
            num_speculative_tokens=guesses,
            prompt_lookup_min=1,
        )
        self.scheduler = Scheduler(blocks, 4, self.runner.config)
        self.live: list[Sequence] = []
        self.flying: deque[tuple[ChecksumFlight, tuple[Sequence, ...]]] = deque()
        self.names = 0

    @rule(
        shared=st.integers(0, 12), tail=st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=5), new=st.integers(1, 6), data=st.data()
    )
    def add(self, shared: int, tail: list[int], new: int, data: st.DataObject) -> None:
        tokens = [3, 4, 5, 6] * 3
        tokens = tokens[:shared] + tail
        steering = data.draw(st.sampled_from([1.0, 1.0, 1.1]))
        self.names += 1
        sequence = Sequence(
            id=f"s{self.names}",
            client=0,
            params=SamplingParams(max_tokens=new, ignore_eos=True, repetition_penalty=steering),
            seed=new,
            tokens=tokens,
            num_prompt=len(tokens),
            max_new=new,
            eos=(EOS,),
            priority=data.draw(st.integers(0, 2)),
            salt=data.draw(st.sampled_from(["", "", "x"])),
        )
        self.scheduler.add(sequence)
        self.live.append(sequence)

    @precondition(lambda self: self.live and len(self.flying) <= self.runner.config.async_scheduling)
    @rule()
    def schedule(self) -> None:
        plan = self.scheduler.schedule()
        assert plan is not None or self.flying, "with nothing in flight somebody can run"
        if plan is not None:
            self.flying.append((self.runner.launch(plan), tuple(self.of(chunk.id) for chunk in plan.chunks)))

    def of(self, id: str) -> Sequence:
        return next(sequence for sequence in self.live if sequence.id == id)

    @precondition(lambda self: self.flying)
    @rule()
    def land(self) -> None:
        flight, flown = self.flying.popleft()
        sampled = flight.wait()
        landed = self.scheduler.land(sampled)
        assert landed.flown == flown
        for sequence, tokens in zip(landed.drew, sampled.tokens, strict=True):
            sequence.owed -= len(tokens)
            if not sequence.ended:
                sequence.tokens += tokens
                if len(sequence.tokens) == sequence.limit:
                    self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        sequence.ended = True
        self.live.remove(sequence)
        self.scheduler.remove(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.remove(data.draw(st.sampled_from(self.live)))

    @rule()
    def forget(self) -> None:
        self.scheduler.forget_prefixes()

    @invariant()
    def each_block_is_counted_for_those_who_hold_it(self) -> None:
        if not hasattr(self, "live"):
            return
        holders = {*self.live, *(sequence for _, flown in self.flying for sequence in flown)}
        held = {block for sequence in holders for block in sequence.blocks}
        gauges = self.scheduler.gauges()
        assert gauges["blocks_used"] == len(held) <= gauges["blocks_total"]
        assert gauges["running"] + gauges["waiting"] == len(self.live)
        for sequence in holders:
            assert sequence.capacity == len(sequence.blocks) * 4 >= sequence.computed
            assert len(set(sequence.blocks)) == len(sequence.blocks)

    @invariant()
    def every_token_is_the_one_that_follows(self) -> None:
        for sequence in getattr(self, "live", ()):
            if sequence.num_output:
                before = sequence.tokens[:-1]
                assert sequence.tokens[-1] == next_token(before, sequence.seed, sequence.num_output - 1)

    def teardown(self) -> None:
        """All that is left gets done."""
        if not hasattr(self, "live"):
            return
        for _ in range(1000):
            if not self.live and not self.flying:
                break
            if self.live and not self.flying:
                self.schedule()
            self.land()
        assert not self.live
        assert self.scheduler.gauges()["blocks_used"] == 0


TestEngine = Engine.TestCase
TestEngine.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
