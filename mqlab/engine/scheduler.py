"""Continuous batching: which tokens of which sequences run in the next step."""

from __future__ import annotations

from collections import OrderedDict

from mqlab.engine.blocks import BlockPool, blocks_for
from mqlab.engine.sequence import Sequence
from mqlab.plan import Chunk, Plan


class Scheduler:
    """First come, first served, over one pool of KV blocks.

    Each step runs, in this order and within ``max_num_batched_tokens``: one token of every decoding sequence, the next chunk of a prompt
    that is partly prefilled, and prompts from the head of the queue while sequences, budget and blocks allow. A sequence is
    admitted only with blocks for all its tokens, so that only decoding ever asks for more. When then none is left, the latest
    arrival loses its blocks and goes back to the head of the queue, to be recomputed.

    Every running sequence therefore arrived before every waiting one, the oldest always proceeds, and nothing starves.

    Source: vLLM V1 (v1/core/sched/scheduler.py) for the token budget and the order; nano-vllm for the shape.

    Args:
        pool: the KV blocks.
        max_num_seqs: sequences that run at once.
        max_num_batched_tokens: tokens in one step, at least max_num_seqs.
        eos: the model's end tokens.
    """

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int, eos: tuple[int, ...]) -> None:
        self._pool = pool
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._eos = eos
        self._waiting: OrderedDict[Sequence, None] = OrderedDict()
        # In order of arrival: only the head of the queue is ever appended.
        self._running: OrderedDict[Sequence, None] = OrderedDict()
        self._planned: dict[Sequence, int] = {}
        self._budget = 0
        self._preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that fits in the pool alone (admission.capacity)."""
        self._waiting[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, waiting or running, and free its blocks."""
        queue = self._running if sequence in self._running else self._waiting
        del queue[sequence]
        self._pool.release(sequence)

    def schedule(self) -> Plan:
        """Decide the next step. There is always at least one chunk while there is a sequence."""
        self._planned = {}
        self._budget = self._max_num_batched_tokens
        self._decode()
        self._prefill()
        self._admit()
        return Plan(tuple(self._chunk(sequence, count) for sequence, count in self._planned.items()))

    def advance(self) -> list[Sequence]:
        """The planned step has run: count it; returns the sequences that sampled, in the order of ``Plan.sampling``."""
        for sequence, count in self._planned.items():
            sequence.computed += count
        return [sequence for sequence in self._planned if not sequence.pending]

    def gauges(self) -> dict[str, int]:
        """The scheduler's fields of EngineStats."""
        return {
            "running": len(self._running),
            "waiting": len(self._waiting),
            "blocks_used": self._pool.num_used,
            "blocks_total": self._pool.num_blocks,
            "preemptions": self._preemptions,
        }

    def _decode(self) -> None:
        for sequence in tuple(self._running):
            if sequence.pending == 1 and self._secure(sequence):
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

    def _take(self, sequence: Sequence, count: int) -> None:
        self._planned[sequence] = count
        self._budget -= count

    def _chunk(self, sequence: Sequence, count: int) -> Chunk:
        start, end = sequence.computed, sequence.computed + count
        return Chunk(
            id=sequence.id,
            tokens=tuple(sequence.tokens[start:end]),
            start=start,
            blocks=sequence.blocks[: blocks_for(end, self._pool.block_size)],
            samples=end == len(sequence.tokens),
            params=sequence.params,
            seed=sequence.seed,
            output_index=sequence.num_output,
            banned=sequence.banned(self._eos),
        )
