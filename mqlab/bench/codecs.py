"""``mqlab bench codecs``: what the message of one engine step costs: its bytes, to make it, to read it.

A step brings each of its requests one token. Every codec encodes it with new tokens only and with all tokens so far; no socket is in the
numbers. Times are of this thread's processor: nothing here waits, and what other programs do is left out.
"""

from __future__ import annotations

import time
from statistics import median

from mqlab.bars import progress_bar
from mqlab.bench.codecs_options import CodecsConfig
from mqlab.bench.codecs_result import CodecsResult, Row
from mqlab.bench.cpu import CpuWatch
from mqlab.bench.output import told
from mqlab.record.metadata import environment
from mqlab.types import Delta, Step
from mqlab.wire.codecs import CODECS, OUTPUTS, make_codec

_FIRST_TOKEN = 1000
"""Token ids from here on take three bytes in either codec, as most of a large vocabulary do."""


def main(config: CodecsConfig) -> int:
    """``codecs``, with its progress and result printed and, where asked for, the result written to a file.

    Raises:
        ConfigError: the file cannot be written.
    """
    told(lambda: codecs(config), config.output_json)
    return 0


def codecs(config: CodecsConfig) -> CodecsResult:
    """Run the benchmark."""
    timed = [TimedCodec(codec, output, batch, config) for batch in config.batches for codec in CODECS for output in OUTPUTS]
    with CpuWatch({}) as cpu:
        rounds = config.num_iters_warmup + config.num_iters
        for number in progress_bar("rounds", iterable=range(rounds), unit="round"):
            # Each round begins with another, so that none always follows the same.
            for one in timed[number % len(timed) :] + timed[: number % len(timed)]:
                one.run(counts=number >= config.num_iters_warmup)
    return CodecsResult(rows=tuple(one.row for one in timed), workload=config.as_record(), cpu=cpu.report, meta=environment())


def step_of(batch: int, place: int, count: int = 1) -> Step:
    """The step that brings each of ``batch`` requests ``count`` tokens, the first of them its token number ``place``, from 0."""
    first = _FIRST_TOKEN + place
    return Step([Delta(f"request-{number:04d}", [*range(first, first + count)]) for number in range(batch)])


class TimedCodec:
    """One codec with one kind of output, whose messages of steps of one size are timed."""

    def __init__(self, codec: str, output: str, batch: int, config: CodecsConfig) -> None:
        self._kind = codec, output, batch
        self._tokens, self._steps = config.tokens, config.steps
        self._bytes = 0
        self._encode_us: list[float] = []
        self._decode_us: list[float] = []

    def run(self, *, counts: bool) -> None:
        """The steps of a round; what came before them comes at once."""
        codec, output, batch = self._kind
        sender, receiver = make_codec(codec, output), make_codec(codec, output)
        begin = self._tokens - 1 - self._steps // 2
        receiver.event(sender.encode(step_of(batch, 0, begin)))
        encode_us, decode_us = [], []
        for place in range(begin, begin + self._steps):
            step = step_of(batch, place)
            start = time.thread_time_ns()
            message = sender.encode(step)
            encoded = time.thread_time_ns()
            received = receiver.event(message)
            decoded = time.thread_time_ns()
            assert received == step_of(batch, place), "what is sent is what is received"
            encode_us.append((encoded - start) / 1000)
            decode_us.append((decoded - encoded) / 1000)
            if place == self._tokens - 1:
                self._bytes = len(message)
        if counts:
            self._encode_us.append(median(encode_us))
            self._decode_us.append(median(decode_us))

    @property
    def row(self) -> Row:
        """What was timed."""
        codec, output, batch = self._kind
        return Row(codec, output, batch, self._bytes, tuple(self._encode_us), tuple(self._decode_us))
