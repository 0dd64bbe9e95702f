"""A runner that can only answer right when the scheduler does: its KV cache is real, its model is a checksum."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mqlab.clock import ManualClock
from mqlab.config import EngineConfig
from mqlab.engine.core import Core, step
from mqlab.engine.engine_core import EngineCore
from mqlab.logprobs import Logprobs
from mqlab.plan import UNKNOWN, Chunk, Plan, SampledTokens
from mqlab.types import Delta, Event, ModelInfo, Reply, Request, SamplingParams, Step

VOCAB = 29
EOS = 2


def digest(*of: object) -> int:
    """32 bits that depend on everything in ``of``."""
    return zlib.crc32(repr(of).encode())


def next_token(tokens: Sequence[int], seed: int, output_index: int, banned: Sequence[int] = ()) -> int:
    """A token that depends on all before it, on the seed and on the index of the draw; every other one can be guessed from the last."""
    drawn = digest(list(tokens), seed, output_index)
    first = drawn // 2 % VOCAB if drawn % 2 else 3 + (tokens[-1] + 1) % 3
    return next(token for token in ((first + i) % VOCAB for i in range(VOCAB)) if token not in banned)


def score(tokens: Sequence[int]) -> float:
    """The logprob of the last of these, behind the others."""
    return -float(digest(list(tokens)) % 1000)


def state(tokens: Sequence[int]) -> float:
    """The hidden state of the last of these: small and whole, so that float32 adds them up exactly."""
    return float(digest("state", list(tokens)) % 100)


def scores(tokens: Sequence[int]) -> list[tuple[int, float]]:
    """(token, logprob) of all but the first."""
    return [(tokens[i], score(tokens[: i + 1])) for i in range(1, len(tokens))]


def pooled_state(tokens: Sequence[int], kind: str) -> float:
    """What becomes of the hidden states of a prompt."""
    states = [state(tokens[: i + 1]) for i in range(len(tokens))]
    return {"mean": sum(states), "last": states[-1], "cls": states[0]}[kind]


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
        self.authors: list[str] = [""] * (info.num_blocks * info.block_size)
        self.readings: set[tuple[str, str]] = set()  # (who read, who had written it)
        self.plans: list[Plan] = []
        self.flights: deque[ChecksumFlight] = deque()
        self.sampled = SampledTokens(())
        self.log: list[tuple[str, int]] = []
        self.closed = 0

    def launch(self, plan: Plan) -> ChecksumFlight:
        self.check_plan(plan)
        self.check_ahead(plan)
        self.log.append(("launch", len(self.plans)))
        self.plans.append(plan)
        self.flights.append(ChecksumFlight(self, plan))
        return self.flights[-1]

    def land(self, flight: ChecksumFlight) -> SampledTokens:
        assert self.flights[0] is flight, "flights land in the order of launches"
        self.log.append(("wait", len(self.plans) - len(self.flights)))
        plan = flight.plan.resolved(self.sampled)
        gains = {row: self.run_round(chunk) for row, chunk in self.written(enumerate(plan.chunks)) if chunk.samples}
        prompts = {row: self.scored(chunk) for row, chunk in enumerate(plan.chunks) if chunk.scored is not None}
        pooled = {row: self.pooled(chunk) for row, chunk in enumerate(plan.chunks) if chunk.pooling is not None}
        for _ in range(plan.rounds - 1):
            again = [(row, plan.chunks[row].after(gained)) for row, gained in gains.items() if plan.chunks[row].rounds > len(gained)]
            for row, chunk in self.written(again):
                gains[row] += self.run_round(chunk)
        self.flights.popleft()
        self.sampled = SampledTokens(tuple(gains.values()), plan.rounds, prompts=prompts, pooled=pooled)
        return self.sampled

    def written(self, chunks: Iterable[tuple[int, Chunk]]) -> list[tuple[int, Chunk]]:
        """The chunks, once the tokens of all are in the cache: nobody reads before."""
        chunks = list(chunks)
        for _, chunk in chunks:
            for slot, token in zip(self.slots(chunk)[chunk.start :], chunk.tokens, strict=False):
                self.cache[slot] = token
                self.authors[slot] = chunk.id
        return chunks

    def read(self, chunk: Chunk) -> list[int]:
        """The tokens of its positions, as the cache has them."""
        slots = self.slots(chunk)[: chunk.end]
        self.readings |= {(chunk.id, self.authors[slot]) for slot in slots}
        return [-1 if (token := self.cache[slot]) is None else token for slot in slots]

    def scored(self, chunk: Chunk) -> Logprobs:
        """The prompt logprobs that it asks for."""
        assert chunk.scored is not None
        first, targets = chunk.start + chunk.scored.row + 1, chunk.scored.targets
        assert chunk.scored.row >= 0 and first + len(targets) <= chunk.end + 1, "a row that it does not run"
        seen = [*self.read(chunk), *targets[-1:]]
        values = [score([*seen[:position], token]) for position, token in enumerate(targets, first)]
        column = np.array(targets, np.int32)[:, None]
        return Logprobs.pack(column, np.array(values, np.float32)[:, None], np.ones(len(targets), np.int32))

    def pooled(self, chunk: Chunk) -> np.ndarray:
        """The hidden states that it asks for, float32 [1]."""
        seen = self.read(chunk)
        states = [state(seen[: end + 1]) for end in range(chunk.start, chunk.end)]
        wanted = {"mean": sum(states), "last": states[-1], "cls": states[0]}[str(chunk.pooling)]
        return np.array([wanted], np.float32)

    def slots(self, chunk: Chunk) -> list[int]:
        """Where in the cache its positions lie."""
        size = self.info.block_size
        return [block * size + offset for block in chunk.blocks for offset in range(size)]

    @property
    def blocks_in_flight(self) -> int:
        return len({block for flight in self.flights for chunk in flight.plan.chunks for block in chunk.blocks})

    def check_plan(self, plan: Plan) -> None:
        config = self.config
        assert 1 <= len(plan.chunks) <= config.max_num_seqs
        assert sum(len(chunk.tokens) for chunk in plan.chunks) <= config.max_num_batched_tokens
        assert all(chunk.tokens for chunk in plan.chunks)
        assert all(len(chunk.blocks) == -(-(chunk.end + chunk.rounds - 1) // self.info.block_size) for chunk in plan.chunks)
        assert plan.rounds <= config.num_scheduler_steps
        # The last token that a sequence may have is never run.
        assert all(
            chunk.end + chunk.rounds <= min(self.info.max_model_len, self.info.num_blocks * self.info.block_size) for chunk in plan.chunks
        )
        for chunk in plan.sampling:
            most = self.info.max_model_len if chunk.params.max_tokens is None else chunk.params.max_tokens
            assert chunk.output_index + chunk.rounds + chunk.drafts <= most
        assert plan.rounds == 1 or all(len(chunk.tokens) == 1 and chunk.samples for chunk in plan.chunks), "only decodes look ahead"
        assert plan.rounds == 1 or not any(chunk.params.steers for chunk in plan.chunks), "who steers does not look ahead"
        assert all(chunk.drafts <= config.num_speculative_tokens and chunk.drafts < len(chunk.tokens) for chunk in plan.chunks)
        decodes = [chunk.samples and len(chunk.tokens) == 1 + chunk.drafts for chunk in plan.chunks]
        assert all(first >= second for first, second in pairwise(decodes)), "decodes come first"
        self.check_sharing(plan)

    def check_sharing(self, plan: Plan) -> None:
        """Each block is written by one chunk at most, and whoever else has it reads all of it, once it is full."""
        size = self.info.block_size
        writers = {block: chunk for chunk in plan.chunks for block in self.own(chunk)}
        assert len(writers) == sum(len(self.own(chunk)) for chunk in plan.chunks), "a block is written twice"
        for chunk in plan.chunks:
            assert len(set(chunk.blocks)) == len(chunk.blocks)
            for index, block in enumerate(chunk.blocks[: chunk.start // size]):
                writer = writers.get(block)
                assert writer is None or (writer.blocks[index] == block and writer.end >= (index + 1) * size), "read before it is full"
                assert writer is None or self.config.enable_prefix_caching

    def own(self, chunk: Chunk) -> tuple[int, ...]:
        """The blocks that it writes to."""
        return chunk.blocks[chunk.start // self.info.block_size :]

    def check_ahead(self, plan: Plan) -> None:
        """What a plan may take for granted of the one in flight: where its own chunks go on, and nobody else's blocks."""
        assert len(self.flights) <= self.config.async_scheduling
        before = self.flights[-1].plan if self.flights else Plan(())
        for chunk in plan.chunks:
            assert (UNKNOWN in chunk.tokens) == (chunk.follows is not None)
            assert chunk.follows is None or not (chunk.params.steers or chunk.drafts), "needs a token that is in flight"
            overlapping = [one for one in before.chunks if set(one.blocks) & set(self.own(chunk))]
            assert all(goes_on(one, chunk) for one in overlapping), "a block is written that is in use in flight"
            if chunk.follows is not None:
                origin = before.sampling[chunk.follows]
                assert goes_on(origin, chunk)
                assert chunk.output_index == origin.output_index + origin.rounds

    def run_round(self, chunk: Chunk) -> tuple[int, ...]:
        """The tokens that one round gives: one, or those that its guesses led to."""
        seen = self.read(chunk)
        if chunk.params.penalised:
            assert (list(chunk.history), chunk.num_prompt) == (seen, len(seen) - chunk.output_index), "the boundary has moved"
        gained: list[int] = []
        for number in range(chunk.drafts + 1):
            one = chunk.guess(number) if chunk.drafts else chunk
            gained.append(next_token(seen[: one.end], one.seed, one.output_index, one.banned))
            if number < chunk.drafts and gained[-1] != seen[one.end]:
                break
        return tuple(gained)

    def check(self) -> None:
        pass

    def rest(self) -> None:
        assert not self.flights, "in flight"
        self.cache = []

    def resume(self) -> None:
        self.cache = [None] * len(self.authors)

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
        hidden_size=1,
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
    prompt, tokens = list(request.prompt), list(request.prompt)
    if request.pooling is not None:
        return Answer((), "stop")
    limit = min(room if params.max_tokens is None else params.max_tokens, room - len(tokens))
    for count in range(limit):
        tokens.append(next_token(tokens, seed, count, banned_by(params, tokens[len(prompt) :])))
        output = tuple(tokens[len(prompt) :])
        if count + 1 < params.min_tokens:
            continue
        if tokens[-1] == EOS and not params.ignore_eos:
            return Answer(output, "stop")
        if tokens[-1] in params.stop_token_ids:
            return Answer(output, "stop", tokens[-1])
    return Answer(tuple(tokens[len(prompt) :]), "length")


def banned_by(params: SamplingParams, output: list[int]) -> tuple[int, ...]:
    """What must not follow an output: ends that come too early, and what would complete a bad word of several tokens."""
    ends = (EOS, *params.stop_token_ids) if len(output) < params.min_tokens else ()
    words = [ids for ids in params.bad_word_ids if len(ids) > 1]
    return (*ends, *(ids[-1] for ids in words if tuple(output[-len(ids) + 1 :]) == ids[:-1]))


class Inbox:
    """Collects events and holds them to what a client may rely on."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, str], Answer] = {}
        self.replies: list[Reply] = []
        self.scores: dict[tuple[int, str], list[tuple[int, float]]] = {}
        self.embeddings: dict[tuple[int, str], list[float]] = {}
        self.bursts: list[int] = []  # the most tokens that one request had in each Step

    def take(self, events: Iterable[Event]) -> None:
        gains = [event for event in events if isinstance(event, Step)]
        for gain in gains:
            assert len({delta.id for delta in gain.deltas}) == len(gain.deltas), "one delta a request in a Step"
            self.bursts.append(max(len(delta.tokens) for delta in gain.deltas))
            for delta in gain.deltas:
                self._gain(gain.client, delta)
        self.replies += [event for event in events if isinstance(event, Reply)]

    def _gain(self, client: int, delta: Delta) -> None:
        before = self.answers.get((client, delta.id), Answer())
        assert before.finish is None, "nothing follows the last delta"
        assert delta.tokens or delta.finish, "a delta says something"
        if delta.prompt_logprobs is not None:
            assert not before.tokens, "with the first delta"
            self.scores[client, delta.id] = [row[0] for row in delta.prompt_logprobs.rows()]
        if delta.embedding is not None:
            self.embeddings[client, delta.id] = np.frombuffer(delta.embedding, np.float32).tolist()
        self.answers[client, delta.id] = Answer((*before.tokens, *delta.tokens), delta.finish, delta.stop_reason)


def drain(core: Core, inbox: Inbox | None = None, limit: int = 20_000) -> Inbox:
    """Step until nothing is left."""
    inbox = inbox or Inbox()
    for _ in range(limit):
        if not core.has_work:
            return inbox
        inbox.take(step(core))
    raise AssertionError(f"still busy after {limit} steps")
