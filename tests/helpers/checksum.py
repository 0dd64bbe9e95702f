"""A runner that can only answer right when the scheduler does: its KV cache is real, its model is a checksum."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mqlab.clock import ManualClock
from mqlab.config import EngineConfig
from mqlab.engine.core import Core, step
from mqlab.engine.engine_core import EngineCore
from mqlab.plan import UNKNOWN, Chunk, Plan, SampledTokens
from mqlab.types import Delta, Event, ModelInfo, Reply, Request, Step

VOCAB = 29
EOS = 2


def next_token(tokens: Sequence[int], seed: int, output_index: int, banned: Sequence[int] = ()) -> int:
    """A token that depends on all before it, on the seed and on the index of the draw."""
    digest = zlib.crc32(repr((list(tokens), seed, output_index)).encode())
    return next(token for token in ((digest + i) % VOCAB for i in range(VOCAB)) if token not in banned)


@dataclass
class ChecksumFlight:
    runner: ChecksumRunner
    plan: Plan

    def wait(self) -> SampledTokens:
        return self.runner.land(self)


class ChecksumRunner:
    """Writes token ids into a paged cache and samples from what it reads back; checks every plan."""

    def __init__(self, info: ModelInfo, config: EngineConfig) -> None:
        self.info = info
        self.config = config
        self.cache: list[int | None] = [None] * (info.num_blocks * info.block_size)
        self.plans: list[Plan] = []
        self.flights: deque[ChecksumFlight] = deque()
        self.sampled = SampledTokens(())
        self.log: list[tuple[str, int]] = []
        self.closed = 0

    def launch(self, plan: Plan) -> ChecksumFlight:
        self.check(plan)
        self.check_ahead(plan)
        self.log.append(("launch", len(self.plans)))
        self.plans.append(plan)
        self.flights.append(ChecksumFlight(self, plan))
        return self.flights[-1]

    def land(self, flight: ChecksumFlight) -> SampledTokens:
        assert self.flights[0] is flight, "flights land in the order of launches"
        self.log.append(("wait", len(self.plans) - len(self.flights)))
        plan = flight.plan.resolved(self.sampled)
        gains = [self.run(chunk) for chunk in plan.chunks]
        self.flights.popleft()
        self.sampled = SampledTokens(tuple(tokens for chunk, tokens in zip(plan.chunks, gains, strict=True) if chunk.samples), plan.rounds)
        return self.sampled

    @property
    def blocks_in_flight(self) -> int:
        return len({block for flight in self.flights for chunk in flight.plan.chunks for block in chunk.blocks})

    def check(self, plan: Plan) -> None:
        assert 1 <= len(plan.chunks) <= self.config.max_num_seqs
        assert sum(len(chunk.tokens) for chunk in plan.chunks) <= self.config.max_num_batched_tokens
        assert all(chunk.tokens for chunk in plan.chunks)
        blocks = [block for chunk in plan.chunks for block in chunk.blocks]
        assert len(blocks) == len(set(blocks)), "a block is shared"
        assert all(len(chunk.blocks) == -(-(chunk.end + chunk.rounds - 1) // self.info.block_size) for chunk in plan.chunks)
        assert plan.rounds <= self.config.num_scheduler_steps
        # The last token that a sequence may have is never run.
        assert all(
            chunk.end + chunk.rounds <= min(self.info.max_model_len, self.info.num_blocks * self.info.block_size) for chunk in plan.chunks
        )
        assert all(chunk.output_index + chunk.rounds <= (chunk.params.max_tokens or self.info.max_model_len) for chunk in plan.chunks)
        assert plan.rounds == 1 or all(len(chunk.tokens) == 1 and chunk.samples for chunk in plan.chunks), "only decodes look ahead"
        decodes = [chunk.samples and chunk.start > 0 and len(chunk.tokens) == 1 for chunk in plan.chunks]
        assert all(first >= second for first, second in pairwise(decodes)), "decodes come first"

    def check_ahead(self, plan: Plan) -> None:
        """What a plan may take for granted of the one in flight: where its own chunks go on, and nobody else's blocks."""
        assert len(self.flights) <= self.config.async_scheduling
        before = self.flights[-1].plan if self.flights else Plan(())
        for chunk in plan.chunks:
            assert (UNKNOWN in chunk.tokens) == (chunk.follows is not None)
            overlapping = [one for one in before.chunks if set(one.blocks) & set(chunk.blocks)]
            assert all(goes_on(one, chunk) for one in overlapping), "a block was freed in flight"
            if chunk.follows is not None:
                assert overlapping == [before.sampling[chunk.follows]]
                assert chunk.output_index == overlapping[0].output_index + overlapping[0].rounds

    def run(self, chunk: Chunk) -> tuple[int, ...]:
        gained = self.run_round(chunk)
        while chunk.samples and chunk.rounds > len(gained):
            gained += self.run_round(chunk.after(gained))
        return gained

    def run_round(self, chunk: Chunk) -> tuple[int, ...]:
        slots = [block * self.info.block_size + offset for block in chunk.blocks for offset in range(self.info.block_size)]
        for slot, token in zip(slots[chunk.start :], chunk.tokens, strict=False):
            self.cache[slot] = token
        if not chunk.samples:
            return ()
        seen = [self.cache[slot] for slot in slots[: chunk.end]]
        return (next_token([-1 if token is None else token for token in seen], chunk.seed, chunk.output_index, chunk.banned),)

    def close(self) -> None:
        self.closed += 1


def goes_on(before: Chunk, chunk: Chunk) -> bool:
    """Whether a chunk is the same sequence's next."""
    return (chunk.id, chunk.start) == (before.id, before.end + before.rounds - 1) and chunk.blocks[: len(before.blocks)] == before.blocks


def build_runner(num_blocks: int = 64, block_size: int = 4, max_model_len: int = 128, **config: Any) -> ChecksumRunner:
    """A runner whose info is consistent, and the engine config that goes with it."""
    pool = num_blocks * block_size
    info = ModelInfo(
        name="checksum",
        vocab_size=VOCAB,
        max_model_len=max_model_len,
        max_prompt_len=min(max_model_len, pool) - 1,
        eos_token_ids=(EOS,),
        num_blocks=num_blocks,
        block_size=block_size,
    )
    return ChecksumRunner(info, EngineConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 16, **config}))


def build_core(runner: ChecksumRunner) -> EngineCore:
    return EngineCore(runner, runner.config, ManualClock())


@dataclass(frozen=True)
class Answer:
    """All that one request gained."""

    tokens: tuple[int, ...] = ()
    finish: str | None = None
    stop_reason: int | None = None


def solo(request: Request, room: int, seed: int | None = None) -> Answer:
    """What the request must give, found without any engine. ``room``: prompt and new tokens at most."""
    params = request.params
    seed = (params.seed or 0) if seed is None else seed
    tokens = list(request.prompt)
    limit = min(params.max_tokens or room, room - len(tokens))
    for count in range(limit):
        banned = (EOS, *params.stop_token_ids) if count < params.min_tokens else ()
        tokens.append(next_token(tokens, seed, count, banned))
        output = tuple(tokens[len(request.prompt) :])
        if count + 1 < params.min_tokens:
            continue
        if tokens[-1] == EOS and not params.ignore_eos:
            return Answer(output, "stop")
        if tokens[-1] in params.stop_token_ids:
            return Answer(output, "stop", tokens[-1])
    return Answer(tuple(tokens[len(request.prompt) :]), "length")


class Inbox:
    """Collects events and holds them to what a client may rely on."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, str], Answer] = {}
        self.replies: list[Reply] = []

    def take(self, events: Iterable[Event]) -> None:
        gains = [event for event in events if isinstance(event, Step)]
        assert len({gain.client for gain in gains}) == len(gains), "one Step per client"
        for gain in gains:
            for delta in gain.deltas:
                self._gain(gain.client, delta)
        self.replies += [event for event in events if isinstance(event, Reply)]

    def _gain(self, client: int, delta: Delta) -> None:
        before = self.answers.get((client, delta.id), Answer())
        assert before.finish is None, "nothing follows the last delta"
        assert delta.tokens or delta.finish, "a delta says something"
        self.answers[client, delta.id] = Answer((*before.tokens, *delta.tokens), delta.finish, delta.stop_reason)


def drain(core: Core, inbox: Inbox | None = None, limit: int = 20_000) -> Inbox:
    """Step until nothing is left."""
    inbox = inbox or Inbox()
    for _ in range(limit):
        if not core.has_work:
            return inbox
        inbox.take(step(core))
    raise AssertionError(f"still busy after {limit} steps")
