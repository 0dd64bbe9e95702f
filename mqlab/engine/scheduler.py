"""Continuous batching: which tokens of which sequences run in the next step."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from operator import attrgetter
from typing import Any

from mqlab.clock import Clock, MonotonicClock
from mqlab.config import EngineConfig
from mqlab.engine.dress import is_plain
from mqlab.engine.ngram import Ngrams
from mqlab.engine.sequence import Sequence
from mqlab.engine.tables import BlockTables
from mqlab.engine.takeoff import Agenda, Landed, take_off
from mqlab.plan import Plan, SampledTokens

_by_rank = attrgetter("rank")


class Scheduler:
    """Whoever ranks first goes first, over one pool of KV blocks: by arrival, or under the priority policy by priority and then arrival.

    Each step runs, in this order and within ``max_num_batched_tokens``: one token of every decoding sequence, the next chunk of prompts
    that are partly prefilled, and prompts from the head of the queue while sequences, budget and blocks allow. A sequence is
    admitted only with blocks for all its tokens, so that only decoding ever asks for more. When then none is left, the last in rank
    loses its blocks and goes back to its place in the queue, to be recomputed (or found in the prefix cache).

    By arrival every running sequence arrived before every waiting one, the oldest always proceeds, and nothing starves. By priority a
    waiting sequence takes blocks, place and budget from running ones that rank behind it, the last first, if those can make it fit (vLLM
    preempts for blocks of running sequences only); nobody passes a waiting sequence of better rank. Those of low priority wait as long as
    better ones keep coming.

    With ``num_scheduler_steps`` above 1 a step without any prompt runs so many rounds at once (vLLM 0.6, PR 7000): fewer for a sequence
    near its end, and as far as there are free blocks, for looking ahead preempts nobody. What comes meanwhile waits.

    A step may be planned while the one before it is in flight (vLLM's async scheduling): each sequence counts as computed what is in
    flight, and the tokens that it is owed from there stand in the plan as unknown. Nothing in flight is preempted, and blocks go back
    with the last flight that uses them; when there are too few of them, the next step is planned once nothing is in flight.

    With ``num_speculative_tokens`` a decoding sequence runs tokens that it will perhaps draw behind the last that it drew, from what
    budget and blocks everybody else left. A step with any of them has one round, and no sequence runs ahead of a token in flight,
    for a guess goes on from known ones: async scheduling then plans ahead prompts only.

    Source: vLLM V1 (v1/core/sched/scheduler.py) for the token budget and the order; nano-vllm for the shape.

    Args:
        num_blocks: KV blocks in the pool.
        block_size: tokens a block.
        config: limits and policies.
        clock: stamps when a sequence is first scheduled; the machine's by default.
    """

    def __init__(self, num_blocks: int, block_size: int, config: EngineConfig, clock: Clock | None = None) -> None:
        self._tables = BlockTables(num_blocks, block_size, config.enable_prefix_caching)
        self._config = config
        self._clock = clock or MonotonicClock()
        self._by_priority = config.scheduling_policy == "priority"
        # Both in order of rank.
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._flights: deque[Landed] = deque()  # oldest first
        self._arrivals = self._preemptions = self._drafts = self._drafted = 0
        self._accepted_at = [0] * config.num_speculative_tokens

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that fits in the pool alone (admission.capacity)."""
        self._arrivals += 1
        sequence.rank = sequence.priority if self._by_priority else 0, self._arrivals
        sequence.plain = is_plain(sequence)
        if self._config.num_speculative_tokens:
            sequence.waits = True
            if not sequence.steers:
                sequence.ngrams = Ngrams(self._config.prompt_lookup_min, self._config.prompt_lookup_max)
        insort(self._waiting, sequence, key=_by_rank)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, waiting or running, and free its blocks, or leave that to the last flight that uses them."""
        queue = self._running if sequence.running else self._waiting
        del queue[bisect_left(queue, sequence.rank, key=_by_rank)]
        sequence.running = False
        if not sequence.flights:
            self._tables.close(sequence)

    def schedule(self) -> Plan | None:
        """Decide the next step, in flight from now on until ``land``.

        None when it has to wait for those in flight; with nothing in flight there is a plan while there is a sequence.
        """
        if self._flights and self._by_priority and self._wants_way():
            return None
        agenda = self._decoding()
        if agenda is None:
            return None
        for sequence in agenda.partial:
            self._admit(agenda, ahead_of=sequence)
            if sequence.running and agenda.budget:
                self._take(agenda, sequence)
        self._admit(agenda)
        if not agenda.decoding and not agenda.prompts:
            return None
        self._guess(agenda)
        self._look_ahead(agenda)
        plan, landed = take_off(agenda, self._tables)
        self._flights.append(landed)
        return plan

    def land(self, sampled: SampledTokens) -> Landed:
        """The oldest step in flight is done, and gave ``sampled``."""
        landed = self._flights.popleft()
        for row, count in landed.guessed.items():
            self._correct(landed.drew[row], count, len(sampled.tokens[row]) - 1)
        for sequence in landed.flown:
            sequence.flights -= 1
            if not sequence.running and not sequence.flights:
                self._tables.close(sequence)
        return landed

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, at any time."""
        self._tables.forget()

    def gauges(self) -> dict[str, Any]:
        """The scheduler's fields of EngineStats."""
        return {
            "running": len(self._running),
            "waiting": len(self._waiting),
            "preemptions": self._preemptions,
            "drafts": self._drafts,
            "drafted": self._drafted,
            "accepted": sum(self._accepted_at),
            "accepted_at": tuple(self._accepted_at),
            **self._tables.gauges(),
        }

    def _decoding(self) -> Agenda | None:
        """A step of all that decode; None when blocks that they need are in flight."""
        agenda = Agenda(self._config.max_num_batched_tokens)
        decoding = agenda.decoding
        for sequence in self._running:  # in order, while the last ones may lose their place
            length = len(sequence.tokens) + sequence.owed
            pending = length - sequence.computed
            if pending == 1 and length < sequence.limit:
                if sequence.owed and sequence.waits:
                    continue
                if length > sequence.capacity and not self._tables.grow(sequence):
                    if self._flights:
                        return None
                    if not self._secure(sequence):
                        break
                decoding.append(sequence)
            elif pending > 1 or (pending and not sequence.draws):
                agenda.partial.append(sequence)
        agenda.budget -= len(decoding)
        return agenda

    def _secure(self, sequence: Sequence) -> bool:
        """Get a running sequence the blocks that it needs, at the cost of later ranks; False when it is itself the last."""
        while sequence.running:
            if self._tables.grow(sequence):
                return True
            self._preempt()
        return False

    def _preempt(self) -> None:
        """The last of the running waits again, with nothing in flight."""
        sequence = self._running.pop()
        sequence.running = False
        sequence.pooled = None
        self._tables.close(sequence)
        insort(self._waiting, sequence, key=_by_rank)
        sequence.preemptions += 1
        self._preemptions += 1

    def _admit(self, agenda: Agenda, ahead_of: Sequence | None = None) -> None:
        """Take in from the head of the queue what fits: all, or only those that rank before a running one."""
        while self._waiting:
            sequence = self._waiting[0]
            if ahead_of is not None and ahead_of.rank <= sequence.rank:
                return
            if not self._opened(agenda, sequence):
                return
            del self._waiting[0]
            insort(self._running, sequence, key=_by_rank)
            sequence.running = True
            if sequence.scheduled_ns < 0:
                sequence.scheduled_ns = self._clock.now_ns()
            self._take(agenda, sequence)

    def _opened(self, agenda: Agenda, sequence: Sequence) -> bool:
        """Whether a waiting sequence has got what it needs to run, where it may at the cost of running ones that rank behind it."""
        while not (agenda.budget and self._has_place() and self._tables.open(sequence)):
            if self._flights or not self._outranks(sequence) or (agenda.prompts and not agenda.budget):
                return False
            worst = self._running[-1]
            if worst in agenda.decoding:
                agenda.decoding.remove(worst)
                agenda.budget += 1
            self._preempt()
        return True

    def _has_place(self) -> bool:
        return len(self._running) < self._config.max_num_seqs

    def _outranks(self, sequence: Sequence) -> bool:
        """Whether running sequences rank behind it, and hold what it lacks in blocks."""
        if not self._running or self._running[-1].rank < sequence.rank:
            return False
        behind = self._running[bisect_left(self._running, sequence.rank, key=_by_rank) :]
        return self._tables.lacking(sequence) <= sum([len(one.blocks) for one in behind])

    def _wants_way(self) -> bool:
        """Whether the head of the queue will take from running ones what cannot be taken in flight."""
        if not self._waiting or not self._outranks(self._waiting[0]):
            return False
        full = len(self._running) >= self._config.max_num_batched_tokens
        return full or not self._has_place() or self._tables.lacking(self._waiting[0]) > 0

    def _take(self, agenda: Agenda, sequence: Sequence) -> None:
        """As much as the budget allows of what a sequence has to run."""
        pending = sequence.pending
        count = min(pending, agenda.budget)
        agenda.budget -= count
        if pending == 1 and sequence.draws:
            agenda.decoding.append(sequence)
        else:
            agenda.prompts.append((sequence, count))
            # At once, so that who comes next in this step, another choice of the same prompt perhaps, finds it.
            self._tables.note(sequence, sequence.computed + count)

    def _guess(self, agenda: Agenda) -> None:
        """Guesses for those that decode, in order, from what is left of budget and blocks."""
        for sequence in agenda.decoding:
            if sequence.ngrams is None:
                continue
            room = min(self._config.num_speculative_tokens, sequence.left - 1, agenda.budget)
            guesses = sequence.ngrams.propose(sequence.tokens, room) if room > 0 else ()
            while guesses and not self._tables.grow(sequence, ahead=len(guesses)):
                guesses = guesses[:-1]
            if guesses:
                agenda.guesses[sequence] = guesses
                agenda.budget -= len(guesses)

    def _look_ahead(self, agenda: Agenda) -> None:
        """More rounds for those that decode, in order, from blocks that nobody has."""
        most = self._config.num_scheduler_steps
        if most == 1 or agenda.prompts or agenda.guesses or any(sequence.steers for sequence in agenda.decoding):
            return
        for sequence in agenda.decoding:
            rounds = min(most, sequence.left)
            while rounds > 1 and not self._tables.grow(sequence, ahead=rounds - 1):
                rounds -= 1
            agenda.rounds[sequence] = rounds

    def _correct(self, sequence: Sequence, guessed: int, accepted: int) -> None:
        """Of what a step ran, only the guesses that were right count as computed; what lies behind is overwritten."""
        wrong = guessed - accepted
        sequence.computed -= wrong
        sequence.owed -= wrong
        self._drafts += 1
        self._drafted += guessed
        for place in range(accepted):
            self._accepted_at[place] += 1
