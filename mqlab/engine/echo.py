"""A core without a model: it answers a prompt with the prompt. For tests of everything that stands above a core."""

from __future__ import annotations

import os
import time
from collections import OrderedDict, deque
from dataclasses import dataclass

from mqlab.clock import Clock, MonotonicClock
from mqlab.engine.admission import capacity
from mqlab.engine.blocks import blocks_for
from mqlab.engine.desk import Desk
from mqlab.engine.sequence import Sequence
from mqlab.plan import InFlight, SampledTokens
from mqlab.types import Call, Delta, Event, ModelInfo, Reply, Request


@dataclass(frozen=True, slots=True)
class EchoFlight:
    """A step that the device is done with at ``due`` (s, time.monotonic), and that gives ``tokens``."""

    tokens: tuple[tuple[int, ...], ...]
    rounds: int
    due: float

    def wait(self) -> SampledTokens:
        """The tokens, when they are due."""
        if (seconds := self.due - time.monotonic()) > 0:
            time.sleep(seconds)
        return SampledTokens(self.tokens, self.rounds)


class EchoCore:
    """Obeys the Core contract; each step gives every running request the next id of its prompt, round and round.

    Up to ``max_num_seqs`` requests run, first come first served. Blocks are counted, never scarce. Nothing is masked: below ``min_tokens``
    an end token is given out and does not end the request.

    Args:
        info: the limits to keep.
        max_num_seqs: requests that run at once.
        device_time: seconds that a round takes on the device, which does one step after the other.
        clock: stamps the statistics.
        num_scheduler_steps: rounds of a step that brings in no prompt: as many tokens for each request at once.
        async_scheduling: launch the next step while one is in flight.
    """

    def __init__(
        self,
        info: ModelInfo,
        max_num_seqs: int,
        device_time: float,
        clock: Clock,
        num_scheduler_steps: int = 1,
        async_scheduling: bool = False,
    ) -> None:
        self.info = info
        self._max_num_seqs = max_num_seqs
        self._device_time = device_time
        self._num_scheduler_steps = num_scheduler_steps
        self._waiting: OrderedDict[Sequence, None] = OrderedDict()
        self._running: dict[Sequence, None] = {}
        self._stepping: deque[tuple[Sequence, ...]] = deque()
        self._due = 0.0
        self._desk = Desk(info, 0, clock, self._release, self._gauges, depth=2 if async_scheduling else 1)
        self.calls = self._desk.calls

    @property
    def has_work(self) -> bool:
        """Whether any request is live, or a step in flight."""
        return self._desk.busy

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: it can never run, or its id is live.
        """
        self._waiting[self._desk.admit(request)] = None

    def abort(self, ids: tuple[str, ...], client: int = 0) -> list[Delta]:
        """End these requests of a client; in flight they are only marked."""
        return self._desk.abort(ids, client)

    def call(self, call: Call) -> Reply | None:
        """Run one control call; in flight it waits for ``finish``."""
        return self._desk.call(call)

    def begin(self) -> InFlight:
        """Fill up the running and start a step, or two when it may run ahead."""
        return self._desk.depart(self._launch)

    def finish(self, sampled: SampledTokens) -> list[Event]:
        """Hand out the step's tokens."""
        return self._desk.settle(zip(self._stepping.popleft(), sampled.tokens, strict=True))

    def close(self) -> None:
        """Idempotent; there is nothing to free but a running profile."""
        self._desk.close()

    def _launch(self) -> EchoFlight | None:
        rounds = self._num_scheduler_steps
        while self._waiting and len(self._running) < self._max_num_seqs:
            sequence, _ = self._waiting.popitem(last=False)
            self._running[sequence] = None
            rounds = 1
        stepping = tuple(sequence for sequence in self._running if sequence.left > 0)
        if not stepping:
            return None
        self._stepping.append(stepping)
        self._due = max(self._due, time.monotonic()) + self._device_time * rounds
        return EchoFlight(tuple(_owe(sequence, rounds) for sequence in stepping), rounds, self._due)

    def _release(self, sequence: Sequence) -> None:
        queue = self._running if sequence in self._running else self._waiting
        del queue[sequence]

    def _gauges(self) -> dict[str, int]:
        used = sum(blocks_for(len(sequence.tokens), self.info.block_size) for sequence in self._running)
        return {"running": len(self._running), "waiting": len(self._waiting), "blocks_used": used, "blocks_total": self.info.num_blocks}


def _owe(sequence: Sequence, rounds: int) -> tuple[int, ...]:
    """What an endless repetition of the prompt goes on with, as far as the request may; the sequence is owed it from here on."""
    begin, prompt = sequence.output_index, sequence.num_prompt
    if rounds == 1:
        sequence.owed += 1
        return (sequence.tokens[begin % prompt],)
    ids = tuple(sequence.tokens[(begin + ahead) % prompt] for ahead in range(min(rounds, sequence.left)))
    sequence.owed += len(ids)
    return ids


def build(
    *,
    name: str = "echo",
    path: str = "",
    vocab_size: int = 49152,
    max_model_len: int = 8192,
    num_blocks: int = 4096,
    block_size: int = 16,
    max_num_seqs: int = 256,
    eos_token_ids: tuple[int, ...] = (2,),
    device_time: float = 0.0,
    num_scheduler_steps: int = 1,
    async_scheduling: bool = False,
) -> EchoCore:
    """An EchoCore, for ``Spec("mqlab.engine.echo:build", {...})``. ``path`` may name a folder with a tokenizer."""
    info = ModelInfo(
        name=name,
        path=path,
        architecture="echo",
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        max_prompt_len=capacity(max_model_len, num_blocks, block_size) - 1,
        eos_token_ids=tuple(eos_token_ids),
        num_blocks=num_blocks,
        block_size=block_size,
        pid=os.getpid(),
    )
    return EchoCore(info, max_num_seqs, device_time, MonotonicClock(), num_scheduler_steps, async_scheduling)
