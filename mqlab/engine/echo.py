"""A core without a model: it answers a prompt with the prompt. For tests of everything that stands above a core."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
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
    """A step that takes ``seconds`` and gives ``tokens``."""

    tokens: tuple[int, ...]
    seconds: float

    def wait(self) -> SampledTokens:
        """The tokens, after the device's time."""
        if self.seconds:
            time.sleep(self.seconds)
        return SampledTokens(self.tokens)


class EchoCore:
    """Obeys the Core contract; each step gives every running request the next id of its prompt, round and round.

    Up to ``max_num_seqs`` requests run, first come first served. Blocks are counted, never scarce. Nothing is masked: below ``min_tokens``
    an end token is given out and does not end the request.

    Args:
        info: the limits to keep.
        max_num_seqs: requests that run at once.
        device_time: seconds that a step spends in ``wait``.
        clock: stamps the statistics.
    """

    def __init__(self, info: ModelInfo, max_num_seqs: int, device_time: float, clock: Clock) -> None:
        self.info = info
        self._max_num_seqs = max_num_seqs
        self._device_time = device_time
        self._waiting: OrderedDict[Sequence, None] = OrderedDict()
        self._running: dict[Sequence, None] = {}
        self._stepping: tuple[Sequence, ...] = ()
        self._desk = Desk(info, 0, clock, self._release, self._gauges)
        self.calls = self._desk.calls

    @property
    def has_work(self) -> bool:
        """Whether any request is live."""
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
        """Fill up the running and start a step."""
        while self._waiting and len(self._running) < self._max_num_seqs:
            sequence, _ = self._waiting.popitem(last=False)
            self._running[sequence] = None
        self._stepping = tuple(self._running)
        self._desk.depart()
        # The output repeats the prompt, so the next id is always the one num_prompt places back.
        return EchoFlight(tuple(sequence.tokens[-sequence.num_prompt] for sequence in self._stepping), self._device_time)

    def finish(self, sampled: SampledTokens) -> list[Event]:
        """Hand out the step's tokens."""
        return self._desk.settle(zip(self._stepping, sampled.tokens, strict=True))

    def close(self) -> None:
        """Idempotent; there is nothing to free but a running profile."""
        self._desk.close()

    def _release(self, sequence: Sequence) -> None:
        queue = self._running if sequence in self._running else self._waiting
        del queue[sequence]

    def _gauges(self) -> dict[str, int]:
        used = sum(blocks_for(len(sequence.tokens), self.info.block_size) for sequence in self._running)
        return {"running": len(self._running), "waiting": len(self._waiting), "blocks_used": used, "blocks_total": self.info.num_blocks}


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
    return EchoCore(info, max_num_seqs, device_time, MonotonicClock())
