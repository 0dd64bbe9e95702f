"""Continuous batching: which tokens of which sequences run in the next step."""

from __future__ import annotations

from collections import OrderedDict, deque

from mqlab.engine.blocks import BlockPool, blocks_for
from mqlab.engine.sequence import Sequence
from mqlab.plan import UNKNOWN, Chunk, Plan


class Scheduler:
    """First come, first served, over one pool of KV blocks.

    Each step runs, in this order and within ``max_num_batched_tokens``: one token of every decoding sequence, the next chunk of a prompt
    that is partly prefilled, and prompts from the head of the queue while sequences, budget and blocks allow. A sequence is
    admitted only with blocks for all its tokens, so that only decoding ever asks for more. When then none is left, the latest
    arrival loses its blocks and goes back to the head of the queue, to be recomputed.

    With ``num_scheduler_steps`` above 1 a step without any prompt runs so many rounds at once (vLLM 0.6, PR 7000): fewer for a sequence
    near its end, and as far as there are free blocks, for looking ahead preempts nobody. What comes meanwhile waits.

    A step may be planned while the one before it is in flight (vLLM's async scheduling): each sequence counts as computed what is in
    flight, and the tokens that it is owed from there stand in the plan as unknown. Nothing in flight is preempted, and blocks go back
    with the last flight that uses them; when there are too few of them, the next step is planned once nothing is in flight.

    Every running sequence therefore arrived before every waiting one, the oldest always proceeds, and nothing starves.

    Source: vLLM V1 (v1/core/sched/scheduler.py) for the token budget and the order; nano-vllm for the shape.

    Args:
        pool: the KV blocks.
        max_num_seqs: sequences that run at once.
        max_num_batched_tokens: tokens in one step, at least max_num_seqs.
        eos: the model's end tokens.
        num_scheduler_steps: rounds of a step that only decodes.
    """

    def __init__(
        self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int, eos: tuple[int, ...], num_scheduler_steps: int = 1
    ) -> None:
        self._pool = pool
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._eos = eos
        self._num_scheduler_steps = num_scheduler_steps
        self._waiting: OrderedDict[Sequence, None] = OrderedDict()
        # In order of arrival: only the head of the queue is ever appended.
        self._running: OrderedDict[Sequence, None] = OrderedDict()
        self._planned: dict[Sequence, int] = {}
        self._rounds: dict[Sequence, int] = {}
        # Of each step in flight, oldest first: its sequences, and those of them that it samples.
        self._flights: deque[tuple[tuple[Sequence, ...], list[Sequence]]] = deque()
        self._budget = 0
        self._preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that fits in the pool alone (admission.capacity)."""
        self._waiting[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, waiting or running, and free its blocks, or leave that to the last flight that uses them."""
        queue = self._running if sequence in self._running else self._waiting
        del queue[sequence]
        if not sequence.flights:
            self._pool.release(sequence)

    def schedule(self) -> Plan | None:
        """Decide the next step, in flight from now on until ``land``.

        None when it has to wait for those in flight; with nothing in flight there is a plan while there is a sequence.
        """
        # The blocks of what is in flight cannot be taken: who lacks one waits until nothing is.
        if self._flights and not all(map(self._pool.grow, self._decoding())):
            return None
        self._planned, self._rounds = {}, {}
        self._budget = self._max_num_batched_tokens
        self._decode()
        self._prefill()
        self._admit()
        if self._num_scheduler_steps > 1 and all(sequence.pending == 1 for sequence in self._planned):
            self._look_ahead()
        return self._take_off() if self._planned else None

    def land(self) -> list[Sequence]:
        """The oldest step in flight is done; returns the sequences that it sampled, in the order of ``Plan.sampling``."""
        flown, sampled = self._flights.popleft()
        for sequence in flown:
            sequence.flights -= 1
            if not sequence.flights and sequence not in self._running:
                self._pool.release(sequence)
        return sampled

    def gauges(self) -> dict[str, int]:
        """The scheduler's fields of EngineStats."""
        return {
            "running": len(self._running),
            "waiting": len(self._waiting),
            "blocks_used": self._pool.num_used,
            "blocks_total": self._pool.num_blocks,
            "preemptions": self._preemptions,
        }

    def _decoding(self) -> list[Sequence]:
        return [sequence for sequence in self._running if sequence.pending == 1 and sequence.left > 0]

    def _decode(self) -> None:
        for sequence in self._decoding():
            if self._secure(sequence):
                self._take(sequence, 1)

    def _secure(self, sequence: Sequence) -> bool:
        """Get a running sequence the blocks that it needs, at the cost of later arrivals; False when it is itself the latest."""
        while sequence in self._running:
            if self._pool.grow(sequence):
                return True
            self._preempt_latest()
        return False

    def _preempt_latest(self) -> None:
        sequence, _ = self._running.popitem()
        self._pool.release(sequence)
        self._waiting[sequence] = None
        self._waiting.move_to_end(sequence, last=False)
        self._preemptions += 1

    def _prefill(self) -> None:
        # At most one sequence is partly prefilled, the one that used up a budget; decoding leaves it at least one token of the next.
        for sequence in self._running:
            if sequence.pending > 1:
                self._take(sequence, min(sequence.pending, self._budget))

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_num_seqs and self._budget > 0:
            sequence = next(iter(self._waiting))
            if not self._pool.grow(sequence):
                return
            del self._waiting[sequence]
            self._running[sequence] = None
            self._take(sequence, min(sequence.pending, self._budget))

    def _look_ahead(self) -> None:
        """More rounds for those that decode, oldest first, from blocks that nobody has."""
        for sequence in self._planned:
            rounds = min(self._num_scheduler_steps, sequence.left)
            while rounds > 1 and not self._pool.grow(sequence, ahead=rounds - 1):
                rounds -= 1
            self._rounds[sequence] = max(rounds, 1)

    def _take(self, sequence: Sequence, count: int) -> None:
        self._planned[sequence] = count
        self._budget -= count

    def _take_off(self) -> Plan:
        chunks: list[Chunk] = []
        sampled: list[Sequence] = []
        for sequence, count in self._planned.items():
            chunk = self._chunk(sequence, count)
            sequence.flights += 1
            sequence.computed += count + chunk.rounds - 1
            if chunk.samples:
                sequence.owed += chunk.rounds
                sequence.row = len(sampled)
                sampled.append(sequence)
            chunks.append(chunk)
        self._flights.append((tuple(self._planned), sampled))
        return Plan(tuple(chunks))

    def _chunk(self, sequence: Sequence, count: int) -> Chunk:
        start, end = sequence.computed, sequence.computed + count
        rounds = self._rounds.get(sequence, 1)
        index = sequence.output_index
        return Chunk(
            id=sequence.id,
            tokens=(UNKNOWN,) if sequence.owed else tuple(sequence.tokens[start:end]),
            start=start,
            blocks=sequence.blocks[: blocks_for(end + rounds - 1, self._pool.block_size)],
            samples=end == sequence.length,
            params=sequence.params,
            seed=sequence.seed,
            output_index=index,
            banned=sequence.banned(self._eos),
            rounds=rounds,
            banned_rounds=max(1, sequence.params.min_tokens - index),
            follows=sequence.row if sequence.owed else None,
        )
